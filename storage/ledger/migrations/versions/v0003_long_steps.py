"""Steps of 64 bits, as scripts have that count tokens, also on PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS = {
    "epochs": {"start_step": False, "first_step": True, "last_step": True},
    "stretches": {"first_step": False, "last_step": False},
    "incidents": {"last_good_step": True},
    "checkpoints": {"step": False},
    "suspicions": {"from_step": False},
}
"""Of each table, and whether it may be empty."""


def upgrade() -> None:
    """Widen the columns."""
    for name, columns in COLUMNS.items():
        with op.batch_alter_table(name) as table:
            for column, nullable in columns.items():
                table.alter_column(
                    column, existing_type=sa.Integer(), type_=sa.BigInteger(), nullable=nullable
                )
    # What a Holdfast of before migrations looks at: it refuses the ledger, and says so.
    op.execute("DELETE FROM meta WHERE key = 'schema'")
    op.execute("INSERT INTO meta (key, value) VALUES ('schema', '3')")
