"""Connection and transactions: the one place that knows how SQLite and PostgreSQL differ."""

from __future__ import annotations

import functools
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pydantic_core
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, Select, StaticPool, bindparam, create_engine, event, inspect, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import Session
from tenacity import (
    retry,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random,
)

from holdfast import failpoint, private, redact
from holdfast.clock import Clock, SystemClock
from holdfast.errors import SettingsError, UnavailableError
from holdfast.storage.ledger import migrate
from holdfast.storage.ledger.one_view import forget

BUSY_TIMEOUT_S = 10
CONNECT_TIMEOUT_S = 5

P = ParamSpec("P")
R = TypeVar("R")


def repeat_on_conflict(method: Callable[P, R]) -> Callable[P, R]:
    """Run a method again when another process inserted the same row first: then it finds that row."""
    return retry(
        retry=retry_if_exception_type(IntegrityError),
        stop=stop_after_attempt(5),
        wait=wait_random(0, 0.05),
        reraise=True,
    )(method)


class LedgerSession(Session):
    """A session that builds the query for a row's key once: to build it takes as long as to have it answered."""

    def get(self, entity: Any, ident: Any, *, with_for_update: Any = None, **options: Any) -> Any:
        """Return the row of a key, or None; see :meth:`sqlalchemy.orm.Session.get`."""
        values = ident if isinstance(ident, tuple) else (ident,)
        known = inspect(entity).identity_key_from_primary_key(values) in self.identity_map
        if known or options:
            return super().get(entity, ident, with_for_update=with_for_update, **options)
        query = _by_key(entity, bool(with_for_update))
        return self.scalars(query, {f"key_{n}": value for n, value in enumerate(values)}).one_or_none()


@functools.cache
def _by_key(entity: Any, lock: bool) -> Select[Any]:
    columns = inspect(entity).primary_key
    query = select(entity).where(*(column == bindparam(f"key_{n}") for n, column in enumerate(columns)))
    return query.with_for_update() if lock else query


class Connection:
    """An engine with two kinds of transactions; base of the ledger's parts."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        """Connect lazily to ``url`` (SQLAlchemy, ``sqlite:///path`` or ``postgresql+psycopg://...``).

        Raises:
            SettingsError: the URL cannot be understood, or its driver is not installed.
        """
        self._clock: Clock = clock or SystemClock()
        self._engine = _engine(url)
        self._writing = self._engine.execution_options(holdfast_write=True)
        self._reading = self._engine
        if self._engine.dialect.name == "postgresql":
            # By default each of its statements sees what was committed meanwhile.
            self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._where = redact.passwords(self._engine.url.render_as_string(hide_password=True))
        self._checked = False
        self._guard: Callable[[Session], None] | None = None

    def create(self) -> tuple[str | None, str]:
        """Make the tables, or bring them up to date; the schema's revisions before and after.

        Any number of processes may do so at once.

        Raises:
            SettingsError: the ledger was made by a newer Holdfast.
            UnavailableError: the database does not answer.
        """
        if self._engine.dialect.name == "sqlite" and self._engine.url.database:
            _make_private(Path(self._engine.url.database))
        try:
            with self._writing.connect() as connection, _unrelated(connection), connection.begin():
                done = migrate.upgrade(connection, self._where)
        except DBAPIError as error:
            raise self._unavailable(error) from error
        self._checked = True
        return done

    def revision(self) -> str | None:
        """Return the schema's revision as the database has it; None: no tables, or those of before migrations.

        Raises:
            UnavailableError: the database does not answer.
        """
        try:
            with self._engine.begin() as connection:
                return migrate.revision(connection)
        except DBAPIError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """Close all connections. Used again, it connects again."""
        self._engine.dispose()

    @contextmanager
    def _read(self) -> Iterator[Session]:
        """Open a session with one consistent view; nothing is written."""
        with self._session(self._reading) as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        """Open one transaction: all of it is applied, or nothing. On SQLite it has the database to itself."""
        with self._session(self._writing) as session:
            if self._guard is not None:
                self._guard(session)
            yield session
            session.flush()
            forget()
            failpoint.here("ledger.flushed")
        failpoint.here("ledger.committed")

    @contextmanager
    def _look(self) -> Iterator[SqlConnection]:
        """Open one consistent view of columns: half the price of :meth:`_read`, whose rows track changes."""
        with self._reached(write=False), self._reading.begin() as connection:
            yield connection

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        with (
            self._reached(write=engine is self._writing),
            LedgerSession(engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def _reached(self, *, write: bool) -> Iterator[None]:
        """Surround every transaction; ``write`` is for a ledger that is reached another way."""
        try:
            if not self._checked:
                self._check()
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise self._unavailable(error) from error

    def _check(self) -> None:
        """Before the first use: the tables are those that this Holdfast knows."""
        with self._engine.begin() as connection:
            found = migrate.revision(connection)
            if found is None and not inspect(connection).has_table("jobs"):
                return  # the error of the statement itself names what is missing
        migrate.check(found, self._where)
        self._checked = True

    def _unavailable(self, error: DBAPIError) -> UnavailableError:
        cause = [*str(error.orig).strip().splitlines(), type(error.orig).__name__][0]
        full = any(sign in cause for sign in _FULL)
        what = (
            "Make room on its disk: it goes on by itself then, and jobs train on meanwhile."
            if full
            else "Check that the database is there and that `holdfast up` has made its tables."
        )
        return UnavailableError(f"ledger {self._where} does not answer: {cause}. {what}")


_FULL = ("disk is full", "No space left on device")
"""In errors of SQLite, and of PostgreSQL."""


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        options: dict[str, Any] = {
            "json_serializer": _dump_json,
            "json_deserializer": json.loads,
        }
        if parsed.get_backend_name() == "sqlite":
            options["connect_args"] = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
            if parsed.database in {None, "", ":memory:"}:
                options["poolclass"] = StaticPool
        else:
            options["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S}
            options["pool_pre_ping"] = True
        engine = create_engine(parsed, **options)
    except (ArgumentError, NoSuchModuleError) as error:
        raise SettingsError(
            f"database_url {redact.passwords(url)!r} is not a SQLAlchemy URL: {type(error).__name__}. "
            "Expected sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE."
        ) from error
    except ModuleNotFoundError as error:
        advice = "Install it: pip install 'holdfast[postgres]'."
        if error.name == "psycopg2":  # SQLAlchemy's choice for postgresql://
            advice = "Write postgresql+psycopg://, for the module that 'holdfast[postgres]' installs."
        raise SettingsError(
            f"database_url {parsed.render_as_string()} needs the Python module {error.name}. {advice}"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _make_private(path: Path) -> None:
    """Make the file for this user alone, before SQLite makes it for all; its write-ahead log gets the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(private.opened(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise UnavailableError(f"ledger {path}: cannot be opened ({error.strerror}).") from error


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        # We begin transactions ourselves: the driver would begin late, and then a reader that starts to
        # write fails with "database is locked" at once, regardless of the busy timeout.
        connection.isolation_level = None
        write_ahead(connection)
        # Each commit is on the disk before it is acted on: with NORMAL the last ones are lost with the host's power,
        # and an epoch's number would be given twice.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def began(connection: SqlConnection) -> None:
        if connection.get_execution_options().get("holdfast_write", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:  # takes no lock yet, so there is no error to translate: half of all statements are this one
            raw: Any = connection.connection.driver_connection
            raw.execute("BEGIN")


@contextmanager
def _unrelated(connection: SqlConnection) -> Iterator[None]:
    """Let tables be made again that others refer to: SQLite would take all rows that refer to them for orphans.

    It heeds this outside of transactions only. Whether all are related again is checked before the commit.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.driver_connection
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


def _busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


@retry(
    retry=retry_if_exception(_busy),
    stop=stop_after_delay(BUSY_TIMEOUT_S),
    wait=wait_random(0.005, 0.05),
    reraise=True,
)
def write_ahead(connection: sqlite3.Connection) -> None:
    """Set WAL mode, which a new file does not have yet.

    Two connections that do so at once both hold the file for reading and both want it alone: SQLite fails one of
    them with "database is locked" at once, because waiting for the busy timeout would never help.
    """
    connection.execute("PRAGMA journal_mode=WAL")


def _dump_json(value: object) -> str:
    """Return JSON that every database takes: NaN and infinities become strings."""
    return pydantic_core.to_json(value, inf_nan_mode="strings").decode()
