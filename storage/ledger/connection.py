"""Connection and transactions: the one place that knows how SQLite and PostgreSQL differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pydantic_core
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, StaticPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import Session
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from holdfast.clock import Clock, SystemClock
from holdfast.errors import SettingsError, UnavailableError
from holdfast.storage.ledger.schema import SCHEMA_VERSION, Base, MetaRow

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
        self._where = self._engine.url.render_as_string(hide_password=True)

    def create(self) -> None:
        """Make the tables that are missing. Any number of processes may do so at once.

        Raises:
            SettingsError: the ledger was made by another version of Holdfast.
            UnavailableError: the database does not answer.
        """
        if self._engine.dialect.name == "sqlite" and self._engine.url.database:
            Path(self._engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        try:
            found = self._create()
        except DBAPIError as error:
            raise self._unavailable(error) from error
        if found != SCHEMA_VERSION:
            raise SettingsError(
                f"ledger {self._where} has schema version {found}, this Holdfast needs {SCHEMA_VERSION}. "
                "Use the Holdfast that made it, or move it away and run `holdfast up`."
            )

    # PostgreSQL has no lock to make tables under: the process that loses the race looks again.
    @retry(
        retry=retry_if_exception_type(DBAPIError),
        stop=stop_after_attempt(10),
        wait=wait_random(0.01, 0.2),
        reraise=True,
    )
    def _create(self) -> int:
        with self._writing.begin() as connection:
            Base.metadata.create_all(connection)
        with Session(self._writing) as session, session.begin():
            row = session.get(MetaRow, "schema")
            if row is None:
                session.add(MetaRow(key="schema", value=str(SCHEMA_VERSION)))
                return SCHEMA_VERSION
            return int(row.value)

    def close(self) -> None:
        """Close all connections. Used again, it connects again."""
        self._engine.dispose()

    @contextmanager
    def _read(self) -> Iterator[Session]:
        """One consistent view; nothing is written."""
        with self._session(self._engine) as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        """One transaction: all of it happens, or nothing. On SQLite it has the database to itself."""
        with self._session(self._writing) as session:
            yield session

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: DBAPIError) -> UnavailableError:
        cause = str(error.orig).strip().splitlines()
        return UnavailableError(
            f"ledger {self._where} does not answer: {cause[0] if cause else type(error.orig).__name__}. "
            "Check that the database is there and that `holdfast up` has made its tables."
        )


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
            f"database_url {url!r} is not a SQLAlchemy URL: {error}. "
            "Expected sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE."
        ) from error
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"database_url {parsed.render_as_string()} needs the Python module {error.name}. "
            "Install it: pip install 'holdfast[postgres]'."
        ) from error
    if parsed.get_backend_name() == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        # We begin transactions ourselves: the driver would begin late, and then a reader that starts to
        # write fails with "database is locked" at once, whatever the busy timeout.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        # In WAL mode this loses nothing when a process dies; only the host's power can take the last commits.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def began(connection: SqlConnection) -> None:
        write = connection.get_execution_options().get("holdfast_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _dump_json(value: object) -> str:
    """JSON that every database takes: NaN and infinities become strings."""
    return pydantic_core.to_json(value, inf_nan_mode="strings").decode()
