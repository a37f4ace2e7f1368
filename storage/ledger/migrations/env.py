"""Entry point of alembic: on the connection that it is given, or (for a new migration) on the site's ledger."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine

from holdfast.storage.ledger.schema import Base


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        # SQLite can only add columns: other changes copy the table.
        render_as_batch=True,
        # All migrations or none: SQLite's tables obey transactions too, once one has been begun.
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def _by_hand() -> None:
    from holdfast import settings  # noqa: PLC0415

    with create_engine(settings.load().database).begin() as connection:
        _run(connection)


given: Any = context.config.attributes.get("connection")
if given is None:
    _by_hand()
else:
    _run(given)
