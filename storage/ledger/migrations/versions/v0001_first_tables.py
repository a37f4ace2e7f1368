"""The tables as they were before there were migrations.

``if_not_exists``: a ledger that an earlier Holdfast made is taken up, with whatever tables it lacks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "alerts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("machine", sa.String(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("incident_id", sa.String(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index("ix_alerts_incident_id", "alerts", ["incident_id"], if_not_exists=True)
    op.create_index("ix_alerts_recorded_at", "alerts", ["recorded_at"], if_not_exists=True)
    op.create_table(
        "by_hand",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("act", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index("ix_by_hand_target", "by_hand", ["target"], if_not_exists=True)
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("suspect", sa.Boolean(), nullable=False),
        sa.Column("suspect_reason", sa.String(), nullable=False),
        sa.Column("saved_at", sa.Double(), nullable=False),
        sa.Column("nbytes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "step", "epoch"),
        if_not_exists=True,
    )
    op.create_table(
        "code_versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("bad", sa.Boolean(), nullable=False),
        sa.Column("bad_reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job", "version"),
        if_not_exists=True,
    )
    op.create_table(
        "epochs",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("start_step", sa.Integer(), nullable=False),
        sa.Column("code_version", sa.String(), nullable=False),
        sa.Column("machines", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("incident_id", sa.String(), nullable=True),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("first_step", sa.Integer(), nullable=True),
        sa.Column("first_step_at", sa.Double(), nullable=True),
        sa.Column("last_step", sa.Integer(), nullable=True),
        sa.Column("last_step_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("close_reason", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("job", "epoch"),
        if_not_exists=True,
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("incident_class", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("machine", sa.String(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("reasons", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("injected_at", sa.Double(), nullable=True),
        sa.Column("detected_at", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("first_task_at", sa.Double(), nullable=True),
        sa.Column("recovered_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("flow_run_id", sa.String(), nullable=True),
        sa.Column("last_good_step", sa.Integer(), nullable=True),
        sa.Column("summary", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index("incidents_by_job", "incidents", ["job", "n"], if_not_exists=True)
    op.create_index("incidents_by_state", "incidents", ["state", "opened_at"], if_not_exists=True)
    op.create_table(
        "job_states",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index("ix_job_states_job", "job_states", ["job"], if_not_exists=True)
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("code_version", sa.String(), nullable=False),
        sa.Column("machines", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.Column("submitted_epoch", sa.Integer(), nullable=False),
        sa.Column("incidents", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        if_not_exists=True,
    )
    op.create_table(
        "machines",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("data_address", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("cordon_scope", sa.String(32), nullable=True),
        sa.Column("cordon_reason", sa.String(), nullable=True),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        if_not_exists=True,
    )
    op.create_index("ix_machines_job", "machines", ["job"], if_not_exists=True)
    op.create_index("ix_machines_state", "machines", ["state"], if_not_exists=True)
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
        if_not_exists=True,
    )
    op.create_table(
        "pool",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_table(
        "stretches",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("stall_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index("stretches_by_epoch", "stretches", ["job", "epoch", "id"], if_not_exists=True)
    op.create_table(
        "suspicions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("from_step", sa.Integer(), nullable=False),
        sa.Column("to_epoch", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index("ix_suspicions_job", "suspicions", ["job"], if_not_exists=True)
    op.create_table(
        "actions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incident_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("intent", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("incident_id", "key"),
        if_not_exists=True,
    )
    op.create_index("actions_by_kind", "actions", ["kind", "done_at"], if_not_exists=True)
    op.create_table(
        "incident_alerts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incident_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("incident_id", "key"),
        if_not_exists=True,
    )
    op.create_table(
        "pool_groups",
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"]),
        sa.PrimaryKeyConstraint("pool_id", "name"),
        if_not_exists=True,
    )
