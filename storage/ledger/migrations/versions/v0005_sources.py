"""The audit says from where a person asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of what was asked before it is not known."""
    op.add_column("by_hand", sa.Column("source", sa.String(), nullable=False, server_default=""))
    # What a Holdfast of before migrations looks at: it refuses the ledger, and says so.
    op.execute("DELETE FROM meta WHERE key = 'schema'")
    op.execute("INSERT INTO meta (key, value) VALUES ('schema', '5')")
