"""The ledger's schema: which revision a database has, and the way from there to this Holdfast's.

``alembic_version`` names the revision. A database without it is empty, or was made before there were migrations.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, text

from holdfast.errors import SettingsError
from holdfast.storage.ledger.schema import HEAD, Base

FOLDER = Path(__file__).with_name("migrations")
_LOCK = 0x686F6C64  # "hold", of PostgreSQL's advisory locks
_BEFORE_MIGRATIONS = "1"

_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""As alembic makes it."""


def revision(connection: Connection) -> str | None:
    """Return the revision of a database; None: it has none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def check(found: str | None, where: str) -> None:
    """Refuse a ledger that this Holdfast must not touch.

    Raises:
        SettingsError: it was made by a newer one, or is older and was not migrated.
    """
    if found is not None and found > HEAD:
        raise SettingsError(
            f"ledger {where} has schema {found}, this Holdfast knows up to {HEAD}: a newer Holdfast made it. "
            "Install that one (or a later one) here; nothing was changed."
        )
    if found != HEAD:
        raise SettingsError(
            f"ledger {where} has schema {found or 'of before migrations'}, this Holdfast needs {HEAD}: bring it up to "
            "date with `holdfast ledger upgrade` (`holdfast up` and the gateway do so too)."
        )


def upgrade(connection: Connection, where: str) -> tuple[str | None, str]:
    """Bring a database up to date, within the transaction of ``connection``; the revisions before and after.

    Any number of processes may do so at once: the first does it.

    Raises:
        SettingsError: a newer Holdfast, or something else, made it.
    """
    if connection.dialect.name == "postgresql":
        # Until the end of the transaction. On SQLite a writing transaction has the database to itself anyway.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    before = revision(connection)
    if before is None and not inspect(connection).has_table("meta"):
        _make(connection)
    elif before is None or before < HEAD:
        if before is None:
            _refuse_foreign(connection, where)
        _run(connection)
        if connection.dialect.name == "sqlite" and (lost := _orphans(connection)):
            raise SettingsError(
                f"ledger {where} cannot be brought up to date: rows of {', '.join(lost)} refer to rows that are not "
                "there; nothing was changed. Use the Holdfast that made it."
            )
    else:
        check(before, where)
    return before, HEAD


def _make(connection: Connection) -> None:
    """Create the newest tables in an empty database; a test checks that the migrations lead to the same tables."""
    Base.metadata.create_all(connection)
    _version.create(connection)
    connection.execute(_version.insert().values(version_num=HEAD))
    # A Holdfast older than migrations reads this and refuses the ledger.
    connection.execute(text("INSERT INTO meta (key, value) VALUES ('schema', :n)"), {"n": str(int(HEAD))})


def _refuse_foreign(connection: Connection, where: str) -> None:
    """Refuse tables older than migrations, unless their version is the last one before migrations."""
    found = connection.execute(text("SELECT value FROM meta WHERE key = 'schema'")).scalar()
    if found not in (None, _BEFORE_MIGRATIONS):
        raise SettingsError(
            f"ledger {where} has schema version {found}, expected {_BEFORE_MIGRATIONS}: use the Holdfast that made it, "
            "or move it away and run `holdfast up`."
        )


def _orphans(connection: Connection) -> list[str]:
    """Return the tables with rows that refer to nothing: SQLite does not look while its tables are made again."""
    return sorted({row[0] for row in connection.execute(text("PRAGMA foreign_key_check"))})


def _run(connection: Connection) -> None:
    # Costs 0.2 s, and is seldom needed.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, HEAD)
