"""Hangs that are over when they are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.agent import RankPhase, RankState
from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.diagnose import hang_over


def report(at: float = 1.0, epoch: int = 3, kind: AlertKind = AlertKind.HANG, **evidence: Any) -> Alert:
    found = {"steps_done": 10, "of_ranks": 2, "stopped": [1], "window_s": 5.0} | evidence
    return Alert(kind=kind, job="gpt", epoch=epoch, at=at, fingerprint="hang:gpt", evidence=found)


def ranks(*done: int, state: str = "S") -> list[RankState]:
    return [
        RankState(rank=rank, pid=100 + rank, phase=RankPhase.RUNNING, steps_done=steps, process_state=state)
        for rank, steps in enumerate(done)
    ]


@pytest.mark.parametrize(
    ("now", "since"),
    [
        (ranks(5, 5), 0),
        (ranks(6, 5), 1),
        (ranks(9, 8), 7),
        (ranks(1, 1), 0),  # they were started again
        (ranks(20), 0),  # a machine did not answer
        (ranks(5, 5, 5), 0),  # one was not known when it was reported
    ],
)
def test_steps_since_are_those_of_the_same_ranks(now: list[RankState], since: int) -> None:
    """Where not all are known, nothing is compared, and the hang is judged."""
    assert hang_over.steps_since(report(), now) == since


def test_the_newest_report_of_the_epoch_counts_that_names_steps() -> None:
    """A person's names none, and another epoch's are others."""
    first, newest = report(1.0), report(2.0, steps_done=12)
    by_person = report(9.0, steps_done=None)
    other, exits = report(9.0, epoch=2), report(9.0, kind=AlertKind.RANK_EXIT)
    assert hang_over.alert_of([first, newest, by_person, other, exits], 3) == newest
    assert hang_over.alert_of([by_person, other], 3) is None


def test_a_stopped_process_runs_again_when_none_is_stopped() -> None:
    """Without any that was, there is nothing to watch."""
    assert hang_over.runs_again(report(), ranks(5, 5))
    assert not hang_over.runs_again(report(), ranks(5, 5, state="T (stopped)"))
    assert not hang_over.runs_again(report(stopped=[]), ranks(5, 5))
    assert (hang_over.watch_s(report()), hang_over.watch_s(report(window_s=900.0))) == (5.0, 60.0)
