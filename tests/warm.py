"""What is the same in all tests of one process, made once for all of them instead of once for each."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoints

from sqlalchemy import Engine

from holdfast import plugins
from holdfast.storage.ledger import connection


def share() -> None:
    """Compile each statement of SQLite ledgers once; read the entry points of installed packages once."""
    connection._engine = _compiling_once(connection._engine)
    plugins.entry_points = _read_once(plugins.entry_points)


def _compiling_once(make: Callable[[str], Engine]) -> Callable[[str], Engine]:
    """Give all SQLite engines one dialect: SQLAlchemy keeps compiled statements by engine and dialect.

    Compiling them is a third of the time of a test with a gateway. PostgreSQL's dialects know their server.
    """
    first = make("sqlite://")
    with first.connect():
        pass  # the dialect looks at the library's version

    def engine(url: str) -> Engine:
        made = make(url)
        if made.dialect.name == "sqlite":
            made.dialect, made._compiled_cache = first.dialect, first._compiled_cache
        return made

    return engine


def _read_once(read: Callable[..., EntryPoints]) -> Callable[..., EntryPoints]:
    """Return entry points as long as no folder of installed packages has changed."""

    @functools.lru_cache(64)
    def known(group: str, _folders: tuple[tuple[str, int], ...]) -> EntryPoints:
        return read(group=group)

    def entry_points(*, group: str) -> EntryPoints:
        folders = [(path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.isdir(path)]
        return known(group, tuple(folders))

    return entry_points
