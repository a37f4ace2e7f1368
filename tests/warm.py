"""Objects that are the same in all tests of one process, made once for all of them instead of once for each."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoints
from typing import Any

from fastapi._compat import v2 as fastapi_types
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import Engine

from holdfast import plugins
from holdfast.storage.ledger import connection


def share() -> None:
    """Compile each statement of SQLite ledgers once, and what FastAPI makes of each type; read entry points once."""
    connection._engine = _compiling_once(connection._engine)
    plugins.entry_points = _read_once(plugins.entry_points)
    fastapi_types.TypeAdapter = _adapting_once()


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


def _adapting_once() -> Callable[..., TypeAdapter[Any]]:
    """Return a maker of type adapters that keeps them: those of its routes are half of a gateway's start."""
    known: dict[Any, tuple[Any, TypeAdapter[Any]]] = {}

    def adapter(annotated: Any, *, config: ConfigDict | None = None) -> TypeAdapter[Any]:
        # Metadata cannot be hashed. What is in it stays alive with it, so that no other object has its address.
        key = annotated.__origin__, repr(annotated.__metadata__), repr(config)
        if key not in known:
            known[key] = annotated, TypeAdapter(annotated, config=config)
        return known[key][1]

    return adapter


def _read_once(read: Callable[..., EntryPoints]) -> Callable[..., EntryPoints]:
    """Return entry points as long as no folder of installed packages has changed."""

    @functools.lru_cache(64)
    def known(group: str, _folders: tuple[tuple[str, int], ...]) -> EntryPoints:
        return read(group=group)

    def entry_points(*, group: str) -> EntryPoints:
        folders = [(path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.isdir(path)]
        return known(group, tuple(folders))

    return entry_points
