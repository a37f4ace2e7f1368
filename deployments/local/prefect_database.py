"""The embedded Prefect's database at its first start: made from the schema that its migrations end with.

A new SQLite database goes through a hundred migrations, nine seconds of a processor. Their end is kept beside this
module (``prefect-schema.sql``, written by ``make prefect-schema``) and is taken for a new database of the same Prefect
version. With any other version, and wherever a database is already, Prefect migrates as always.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from importlib import metadata
from pathlib import Path

from holdfast import durable, redact
from holdfast.errors import SettingsError

SCHEMA = Path(__file__).with_name("prefect-schema.sql")
URL = "PREFECT_API_DATABASE_CONNECTION_URL"
_SQLITE = "sqlite+aiosqlite:///"
_POSTGRESQL = "postgresql+asyncpg://"
_VERSION = "-- prefect "


def require_usable(url: str) -> None:
    """Refuse what the Prefect server would end at, again and again, with a traceback; an empty one is the default.

    Raises:
        SettingsError: the URL names no kind of database that Prefect reaches, or another module than Prefect's.
    """
    if url and not url.startswith((_POSTGRESQL, _SQLITE)):
        raise SettingsError(
            f"HOLDFAST_PREFECT_DATABASE_URL = {redact.passwords(url)!r}: expected "
            f"{_POSTGRESQL}USER@HOST/DATABASE or {_SQLITE}PATH, with these modules."
        )


def prepare(environment: Mapping[str, str], schema: Path = SCHEMA) -> bool:
    """Make the database that ``environment`` names, if it is a file that is not there yet; whether it was made.

    Raises:
        OSError: the file could not be written.
    """
    url = environment.get(URL, "")
    path = Path(url.removeprefix(_SQLITE))
    if not url.startswith(_SQLITE) or not path.is_absolute() or path.exists():
        return False
    script = schema.read_text()
    if script.partition("\n")[0] != _VERSION + metadata.version("prefect"):
        return False
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(script)
        content = memory.serialize()
    durable.make_folder(path.parent)
    durable.write(path, content, "prefect-database", mode=0o600)
    return True


def migrated() -> str:
    """Return the script of a new database that Prefect has just migrated.

    Raises:
        CalledProcessError: Prefect could not.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        subprocess.run(
            [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "-y"],
            env={"PREFECT_HOME": folder, URL: f"{_SQLITE}{path}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
        )
        with closing(sqlite3.connect(path)) as database:
            lines = list(database.iterdump())
    return "\n".join([_VERSION + metadata.version("prefect"), *lines]) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(migrated())
