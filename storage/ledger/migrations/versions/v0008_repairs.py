"""Repairs of machines that were evicted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table. Machines that were evicted before have no repair: people release them, as before."""
    op.create_table(
        "repairs",
        sa.Column("id", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("machine", sa.String(), nullable=False),
        sa.Column("incident_id", sa.String(), nullable=True),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("asked", sa.String(length=32), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
    )
    op.create_index("repairs_by_machine", "repairs", ["machine", "id"])
    op.create_index("repairs_by_state", "repairs", ["state"])
    # What a Holdfast of before migrations looks at: it refuses the ledger, and says so.
    op.execute("DELETE FROM meta WHERE key = 'schema'")
    op.execute("INSERT INTO meta (key, value) VALUES ('schema', '8')")
