"""The ledger as one process reaches it: the real one over a database in memory, behind a connection that can fail."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import UnavailableError
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.connection import BUSY_TIMEOUT_S, CONNECT_TIMEOUT_S
from tests.nemesis.scheduler import Process

CALL_S = 0.002
_LOOK_S = 0.05


@functools.cache
def _template() -> bytes:
    """A database with all tables, made once."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(f"sqlite:///{Path(folder) / 'ledger.db'}")
        ledger.create()
        ledger.close()
        with sqlite3.connect(Path(folder) / "ledger.db") as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            return connection.serialize()


@functools.cache
def _shared() -> Ledger:
    """One engine for all runs, with all statements that it compiled."""
    return Ledger("sqlite://")


@dataclass
class Database:
    """The database, and what is wrong with it."""

    away: bool = False
    full: bool = False
    locked: bool = False
    slow_s: float = 0.0
    cut: set[str] = field(default_factory=set)
    """Hosts that do not reach it."""
    on_call: Callable[[Process, bool], None] = lambda _process, _write: None
    """Called before every call to the ledger: faults strike there."""

    def fresh(self) -> None:
        """Empty it."""
        with _shared()._engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            raw.deserialize(_template())
            raw.execute("PRAGMA journal_mode=MEMORY")
            raw.execute("PRAGMA synchronous=OFF")


class ProcessLedger(Ledger):
    """Of one process. Every transaction is a point where others may run, before it and after it."""

    def __init__(self, database: Database, process: Process, clock: Clock) -> None:
        shared = _shared()
        self._engine, self._reading, self._writing = shared._engine, shared._reading, shared._writing
        self._where = "ledger"
        self._clock, self._checked, self._guard = clock, True, None
        self._database, self._process = database, process

    @contextmanager
    def _reached(self, *, write: bool) -> Iterator[None]:
        self._reach(write)
        with super()._reached(write=write):
            yield
        self._process.scheduler.block(self._time_s())

    def _time_s(self) -> float:
        return (CALL_S + self._database.slow_s) * self._process.scheduler.random.random()

    def _reach(self, write: bool) -> None:
        scheduler, database = self._process.scheduler, self._database
        database.on_call(self._process, write)
        scheduler.block(self._time_s())
        if self._process.host in database.cut:
            scheduler.block(CONNECT_TIMEOUT_S)
            raise UnavailableError("ledger does not answer: timeout")
        if database.away:
            raise UnavailableError("ledger does not answer: connection refused")
        if database.full and write:
            raise UnavailableError("ledger does not answer: database or disk is full")
        waited_s = 0.0
        while database.locked and write:
            if waited_s >= BUSY_TIMEOUT_S:
                raise UnavailableError("ledger does not answer: database is locked")
            scheduler.block(_LOOK_S)
            waited_s += _LOOK_S
