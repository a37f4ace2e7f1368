"""Failure domains of machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Where machines are is known when their agents register again."""
    op.add_column("machines", sa.Column("location", sa.JSON(), nullable=False, server_default="{}"))
    # What a Holdfast of before migrations looks at: it refuses the ledger, and says so.
    op.execute("DELETE FROM meta WHERE key = 'schema'")
    op.execute("INSERT INTO meta (key, value) VALUES ('schema', '9')")
