"""Turns: one process at a time, the next when it is done, dead or too slow."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError
from holdfast.operations import turn as turns
from holdfast.operations.turn import turn
from holdfast.storage.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    made.create()
    return made


async def test_one_at_a_time(ledger: Ledger) -> None:
    """Those who come meanwhile wait, each has its turn, and another name is another turn."""
    inside, most, done = 0, 0, 0

    async def one() -> None:
        nonlocal inside, most, done
        async with turn(ledger, "a"):
            inside += 1
            most = max(most, inside)
            async with asyncio.timeout(10), turn(ledger, "b"):
                done += 1
            inside -= 1

    async with asyncio.timeout(30):
        await asyncio.gather(*(one() for _ in range(4)))
    assert (most, done) == (1, 4)


async def test_it_is_given_back_by_one_that_failed(ledger: Ledger) -> None:
    """An engine that refuses does not keep the next from asking."""
    with pytest.raises(ZeroDivisionError):
        async with turn(ledger, "a"):
            raise ZeroDivisionError
    async with asyncio.timeout(10), turn(ledger, "a"):
        pass


async def test_one_that_died_is_passed_over(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives no sign of life any more."""
    monkeypatch.setattr(turns, "TTL_S", 0.0)
    ledger.lead("a process that was killed", "", None, "a")
    async with asyncio.timeout(10), turn(ledger, "a"):
        pass


async def test_one_that_renews_is_waited_for_so_long(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow one that lives is not passed over; the error of one that waited long enough names it."""
    monkeypatch.setattr(turns, "TTL_S", 0.0)
    monkeypatch.setattr(turns, "RENEW_S", 0.0)
    monkeypatch.setattr(turns, "PATIENCE_S", 0.3)
    lead = ledger.lead

    def seen_to_live(*args: object) -> object:
        lead(slow, "", None, "a")
        return lead(*args)  # type: ignore[arg-type]

    slow = "a slow process"
    lead(slow, "", None, "a")
    monkeypatch.setattr(ledger, "lead", seen_to_live)
    with pytest.raises(UnavailableError, match="another process has been at it"):
        async with turn(ledger, "a"):
            raise AssertionError("it has the turn of another")
