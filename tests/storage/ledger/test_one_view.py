"""A decision reads the same once, and sees what it writes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from holdfast.errors import UnknownError
from holdfast.models.job import JobState
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.one_view import one_view
from tests.storage.ledger.samples import register, running_job


@contextmanager
def statements(ledger: Ledger) -> Iterator[list[str]]:
    """SELECTs that the database was asked for meanwhile."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)

    event.listen(ledger._engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(ledger._engine, "before_cursor_execute", note)


@pytest.fixture
def known(ledger: Ledger) -> Ledger:
    """With a job, and connected."""
    running_job(ledger)
    register(ledger, "m0")
    ledger.set_job("gpt", machines=("m0",))
    return ledger


def test_the_same_is_read_once_within(known: Ledger) -> None:
    """Also by functions that it calls, which open one themselves; other arguments are another read."""
    inner = one_view()(lambda: known.job("gpt"))
    with statements(known) as asked, one_view():
        first = known.job("gpt")
        assert inner() is first
        assert known.job("gpt") is first
        assert known.machines() == known.machines()
        known.machines(job="gpt")
        known.machines_named(list(first.machines))
        known.machines_named(first.machines)
    assert len(asked) == 4


def test_each_read_is_new_without_one(known: Ledger) -> None:
    """And after it."""
    with one_view():
        known.job("gpt")
    with statements(known) as asked:
        known.job("gpt")
        known.job("gpt")
    assert len(asked) == 2


def test_what_is_written_within_is_seen(known: Ledger) -> None:
    """Whatever was read before."""
    with one_view():
        assert known.job("gpt").state is JobState.RUNNING
        known.set_job("gpt", state=JobState.PAUSED)
        assert known.job("gpt").state is JobState.PAUSED


def test_a_list_belongs_to_who_asked_for_it(known: Ledger) -> None:
    with one_view():
        known.machines().clear()
        assert known.machines()


def test_nothing_is_remembered_of_an_error(known: Ledger) -> None:
    with one_view():
        for _ in range(2):
            with pytest.raises(UnknownError, match="other"):
                known.job("other")


async def test_it_is_of_one_task(known: Ledger) -> None:
    """Another one that runs meanwhile reads for itself."""

    async def other() -> int:
        with statements(known) as asked:
            known.job("gpt")
        return len(asked)

    waiting = asyncio.create_task(other())
    with one_view():
        known.job("gpt")
    assert await waiting == 1
