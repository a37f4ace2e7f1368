"""Reports of a rank that ended, and their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.agent.metrics import Metrics
from holdfast.agent.ranks.reactions import Watch
from holdfast.models.agent import Report

NOTHING = cast(Any, SimpleNamespace())


def ended(status: int) -> list[str]:
    """Reports to the gateway when a rank ends, in order; the machine's detectors report a kill."""
    sent: list[str] = []

    def report(each: Report) -> None:
        sent.extend([*(alert.kind.value for alert in each.alerts), *(f"done {rank}" for rank in each.done)])

    watch = Watch(
        machine="m0",
        incarnation="i0",
        report=report,
        replicator=NOTHING,
        uploads=NOTHING,
        disk=NOTHING,
        metrics=Metrics(),
        prover=NOTHING,
    )
    watch.look = lambda: sent.append("the detectors")
    start = SimpleNamespace(job="gpt", epoch=1, replay=None)
    run = SimpleNamespace(start=start, board=None, code="", log_tail=lambda _: "")
    watch.exited(cast(Any, run), cast(Any, SimpleNamespace(rank=0, exit_code=status)))
    return sent


@pytest.mark.parametrize("status", [-9, 1])
def test_the_kernel_is_asked_before_an_exit_is_reported(status: int) -> None:
    """Its count of kills for want of memory must not arrive after the incident that it explains."""
    assert ended(status) == ["the detectors", "rank_exit"]


def test_a_rank_that_is_done_needs_no_explanation() -> None:
    """Nothing failed."""
    assert ended(0) == ["done 0"]
