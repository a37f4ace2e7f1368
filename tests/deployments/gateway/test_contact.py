"""A heartbeat is answered whatever becomes of its content: no fault of the control plane ends ranks."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError
from holdfast.models.agent import Heartbeat
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.connection import BUSY_TIMEOUT_S
from holdfast.testing.gateway_kit import JOB, Kit, rank


class Away:
    """The ledger's writes fail while it is away."""

    def __init__(self, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        self.away, self.first_asked = True, threading.Event()
        for name in ("mark", "note_saved", "close_epoch"):
            patch.setattr(ledger, name, self._guarded(getattr(ledger, name)))

    def _guarded(self, call):  # type: ignore[no-untyped-def]
        def guarded(*args: object, **kwargs: object) -> object:
            self.first_asked.set()
            if self.away:
                raise UnavailableError("ledger does not answer: database is locked")
            return call(*args, **kwargs)

        return guarded


def beat_of(kit: Kit, **mark: object) -> dict[str, object]:
    """A heartbeat of rank 0's machine that reports a step."""
    at = kit.clock.now()
    marks = [{"step": 5, "at": at, "s": 0.5, "stall_s": 0.0} | mark]
    run = {"job": JOB, "epoch": 1, "ranks": [], "marks": marks, "saved_step": 4}
    return {"machine": "m0", "incarnation": "i1", "at": at, "jobs": [run]}


async def test_a_heartbeat_is_answered_while_the_ledger_is_away_and_written_when_it_is_back(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the time at which it came."""
    await kit.running_job()
    away = Away(kit.ledger, monkeypatch)
    received_at = kit.clock.now()
    async with asyncio.timeout(60):
        answer = await kit.post("/v1/agents/heartbeat", beat_of(kit), 200)
        assert answer["ok"]
        assert answer["lease_s"] > 0
        await asyncio.to_thread(away.first_asked.wait, 60)
        (epoch,) = kit.ledger.epochs(JOB)
        assert epoch.last_step is None
        away.away = False
        while epoch.last_step is None:
            kit.clock.advance(1)
            await asyncio.sleep(0.01)
            (epoch,) = kit.ledger.epochs(JOB)
    assert (epoch.last_step, epoch.last_step_at) == (5, received_at)
    await kit.settled()
    assert kit.ledger.ever_saved(JOB)


@pytest.mark.parametrize("wrong", [{"s": None}, {"step": 2**63}, {"s": -2.0}, {"step": None}], ids=str)
async def test_a_heartbeat_with_a_wrong_number_is_a_heartbeat(kit: Kit, wrong: dict[str, object]) -> None:
    """The mark is left out, the machine was heard."""
    await kit.running_job()
    kit.clock.advance(3)
    assert (await kit.post("/v1/agents/heartbeat", beat_of(kit, **wrong), 200))["ok"]
    await kit.settled()
    assert kit.gateway.site.fleet.last_seen("m0") == kit.clock.now()
    (epoch,) = kit.ledger.epochs(JOB)
    assert epoch.last_step is None


async def test_heartbeats_events_and_registrations_of_a_newer_agent_are_taken(kit: Kit) -> None:
    """Fields that this gateway does not know change nothing."""
    await kit.running_job()
    newer = beat_of(kit) | {"firmware": {"nic": "28.1"}}
    assert (await kit.post("/v1/agents/heartbeat", newer, 200))["ok"]
    report = {"machine": "m0", "incarnation": "i1", "weather": "fine"}
    await kit.post("/v1/agents/events", report, 200)
    first = {
        "machine": "m7",
        "incarnation": "i1",
        "address": "a:1",
        "data_address": "a:2",
        "pid": 1,
        "gpus": [{"name": "X"}],
    }
    await kit.post("/v1/agents/register", first, 200)
    await kit.settled()
    (epoch,) = kit.ledger.epochs(JOB)
    assert epoch.last_step == 5


async def test_a_detector_that_fails_does_not_refuse_a_heartbeat(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was heard all the same, and what it did is written."""

    def fails(_: Heartbeat) -> None:
        raise ZeroDivisionError

    await kit.running_job()
    monkeypatch.setattr(kit.gateway.hangs, "observe", fails)
    await kit.post("/v1/agents/heartbeat", beat_of(kit), 200)
    await kit.settled()
    (epoch,) = kit.ledger.epochs(JOB)
    assert epoch.last_step == 5


async def test_ranks_that_ended_while_the_ledger_was_away_end_the_job(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting reports are not lost."""
    job = await kit.running_job()
    away = Away(kit.ledger, monkeypatch)
    each = job.spec.world_size // len(job.machines)
    for number, name in enumerate(job.machines):
        here = range(number * each, number * each + each)
        ended = [rank(one, 5, 1.0, phase="exited", exit_code=0) for one in here]
        run = {"job": JOB, "epoch": 1, "ranks": [one.model_dump(mode="json") for one in ended]}
        body = {"machine": name, "incarnation": "i1", "at": kit.clock.now(), "jobs": [run]}
        await kit.post("/v1/agents/heartbeat", body, 200)
    await asyncio.to_thread(away.first_asked.wait, 60)
    away.away = False
    async with asyncio.timeout(60):
        while kit.ledger.job(JOB).state != "done":
            kit.clock.advance(1)
            await asyncio.sleep(0.01)


async def test_a_ledger_that_is_really_locked_holds_no_heartbeat_up(kit: Kit, tmp_path: Path) -> None:
    """A writer of another program that does not end, as in a backup."""
    await kit.running_job()
    database = next(tmp_path.rglob("*.db"))
    other = sqlite3.connect(database)
    other.execute("BEGIN IMMEDIATE")
    try:
        # Each of them that waited for the lock would take as long as it is waited for.
        async with asyncio.timeout(2 * BUSY_TIMEOUT_S):
            for _ in range(3):
                assert (await kit.post("/v1/agents/heartbeat", beat_of(kit), 200))["ok"]
    finally:
        other.rollback()
        other.close()
    await kit.settled()
    (epoch,) = kit.ledger.epochs(JOB)
    assert epoch.last_step == 5
