"""Faults of the embedded services and of the ledger's database."""

from __future__ import annotations

import contextlib
import sqlite3

import psutil

from holdfast.deployments.local import pidfile
from holdfast.errors import RefusedError
from holdfast.inject import stop
from holdfast.inject.stop import Stopped
from holdfast.settings import Settings

SERVICES = ("gateway", "worker", "prefect", "s3")


class Locked:
    """The ledger's database, which another program writes to."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def go_on(self) -> None:
        """Let it go; nothing was written."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")
        self._connection.close()


def kill(settings: Settings, name: str) -> None:
    """Kill a service with all that it started (SIGKILL); its supervisor starts it again.

    Raises:
        RefusedError: it does not run here.
    """
    for process in _tree(settings, name):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def pause(settings: Settings, name: str) -> Stopped:
    """Stop a service with all that it started (SIGSTOP).

    Raises:
        RefusedError: it does not run here.
    """
    return stop.stop(*_tree(settings, name))


def lock_database(settings: Settings) -> Locked:
    """Have the ledger's SQLite database locked for writing.

    Raises:
        RefusedError: the ledger is not a file here, or another process has it locked for seconds.
    """
    path = settings.home / "ledger.db"
    if settings.database_url or not path.exists():
        raise RefusedError(
            "lock-database: the ledger is no SQLite file of this site: break your database itself."
        )
    connection = sqlite3.connect(path, isolation_level=None, timeout=5, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        connection.close()
        raise RefusedError(f"lock-database: {error}") from error
    return Locked(connection)


def _tree(settings: Settings, name: str) -> list[psutil.Process]:
    found = pidfile.running(settings.home, name)
    if found is None:
        raise RefusedError(f"service {name} does not run on this host at the moment: nothing to break.")
    with contextlib.suppress(psutil.NoSuchProcess):
        return [found, *found.children(recursive=True)]
    return [found]
