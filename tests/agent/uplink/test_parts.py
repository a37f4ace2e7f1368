"""Heartbeats of an agent of which a part cannot be read."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.agent.ranks.run import Run
from holdfast.agent.uplink.parts import HeartbeatParts
from holdfast.models.agent import JobOnMachine, RankPhase, RankState, StepMark


class Broken:
    """A run whose board cannot be read where ``fails``."""

    def __init__(self, epoch: int = 1) -> None:
        self.start = SimpleNamespace(job="gpt", epoch=epoch)
        self.fails = False
        self.step = 0

    def snapshot(self) -> JobOnMachine:
        if self.fails:
            raise KeyError(3)
        self.step += 1
        ranks = (RankState(rank=0, pid=9, phase=RankPhase.RUNNING, step=self.step),)
        marks = (StepMark(step=self.step, at=1.0),)
        return JobOnMachine(job="gpt", epoch=self.start.epoch, ranks=ranks, marks=marks)


def save_fields(_: Run) -> dict[str, Any]:
    return {"saved_step": 5}


def test_ranks_that_cannot_be_read_are_reported_as_they_last_were(caplog: pytest.LogCaptureFixture) -> None:
    """The machine still has them, no step is reported twice, and the log has one line until it works again."""
    parts, broken = HeartbeatParts(), Broken()
    run = cast(Run, broken)
    assert parts.job(run, save_fields).ranks[0].step == 1
    broken.fails = True
    for _ in range(3):
        found = parts.job(run, save_fields)
        assert (found.ranks[0].step, found.marks, found.saved_step) == (1, (), 5)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    broken.fails = False
    assert parts.job(run, save_fields).ranks[0].step == 2
    broken.fails = True
    parts.job(run, save_fields)
    assert len(caplog.records) == 2


def test_ranks_of_an_epoch_that_was_never_read_are_named_all_the_same() -> None:
    """Else the gateway would take them for lost, and start the job again; those of an older epoch are no answer."""
    parts = HeartbeatParts()
    parts.job(cast(Run, Broken()), save_fields)
    later = Broken(2)
    later.fails = True
    found = parts.job(cast(Run, later), save_fields)
    assert (found.job, found.epoch, found.ranks) == ("gpt", 2, ())


def test_saves_that_cannot_be_read_take_no_ranks_with_them() -> None:
    """Each part fails by itself."""

    def fails(_: Run) -> dict[str, Any]:
        raise OSError("no such file")

    assert HeartbeatParts().job(cast(Run, Broken()), fails).ranks[0].step == 1
