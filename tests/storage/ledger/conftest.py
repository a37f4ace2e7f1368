"""A ledger on each database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from holdfast.clock import FakeClock
from holdfast.storage.ledger import Ledger

_schemas = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database of its own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    server: str = request.getfixturevalue("postgres_url")
    schema = f"test_{next(_schemas)}"
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    engine.dispose()
    return f"{server}?options=-csearch_path%3D{schema}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(url: str, clock: FakeClock) -> Iterator[Ledger]:
    made = Ledger(url, clock)
    made.create()
    yield made
    made.close()
