"""Outcomes of a replay that are no evidence."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import SilentError, UnavailableError
from holdfast.models.agent import RankResult
from holdfast.models.alert import IncidentClass
from holdfast.operations import fleet
from holdfast.policies.diagnose.agreement import GroupResults
from holdfast.tasks import replay, replay_group
from holdfast.tasks.replay_group import ReplayEnd

NOTHING = ReplayEnd(ok=False, played=GroupResults(size=0))
FAILED = ReplayEnd(ok=False, played=GroupResults(size=8))


@pytest.mark.parametrize(
    ("incident_class", "ended", "evident"),
    [
        (IncidentClass.NAN_LOSS, NOTHING, False),
        (IncidentClass.NAN_LOSS, FAILED, True),
        (IncidentClass.JOB_HANG, NOTHING, True),
    ],
)
def test_groups_that_came_to_no_result_are_no_evidence_against_the_code(
    incident_class: IncidentClass, ended: ReplayEnd, evident: bool
) -> None:
    """A store that is away has every group fail; only a job that hangs shows its fault by that."""
    case: Any = SimpleNamespace(incident_class=incident_class)
    assert (not replay._nothing_seen(case, ([NOTHING, ended], [NOTHING, NOTHING]))) is evident


@pytest.mark.parametrize(("took_s", "fails"), [(5.0, False), (replay_group.SILENT_S, True)])
async def test_a_machine_that_is_busy_with_the_replay_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, took_s: float, fails: bool
) -> None:
    """Its group would fail for it, and a machine of that group be evicted."""
    clock, looks = FakeClock(0.0), 0

    async def ask(*_: object, **__: int) -> dict[str, object]:
        nonlocal looks
        looks += 1
        results: dict[str, object] = {
            name: [RankResult(rank=rank, machine=name, ok=True)] for rank, name in enumerate("ab")
        }
        if looks == 1:
            results["a"] = None
        elif looks == 2:
            clock.advance(took_s)
            results["b"] = SilentError("ReadTimeout")
        return results

    monkeypatch.setattr(fleet, "ask", ask)
    case: Any = SimpleNamespace(ctx=SimpleNamespace(clock=clock), broken_epoch=1)
    if fails:
        with pytest.raises(SilentError):
            await replay_group._results(case, "toy~h0", [])
        return
    results = await replay_group._results(case, "toy~h0", [])
    assert [each.machine for each in results] == ["a", "b"]
    assert looks == 3


async def test_a_machine_that_is_gone_ends_the_replay_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there: no result will come."""

    async def ask(*_: object, **__: int) -> dict[str, object]:
        return {"a": UnavailableError("connection refused")}

    monkeypatch.setattr(fleet, "ask", ask)
    case: Any = SimpleNamespace(ctx=SimpleNamespace(clock=FakeClock(0.0)), broken_epoch=1)
    with pytest.raises(UnavailableError):
        await replay_group._results(case, "toy~h0", [])


@pytest.mark.parametrize(
    ("ends", "evident"), [(UnavailableError("agent at a: connection refused"), False), (TimeoutError(), True)]
)
async def test_a_group_whose_machine_is_gone_was_not_played(
    monkeypatch: pytest.MonkeyPatch, ends: Exception, evident: bool
) -> None:
    """The results of its machines were not seen; a replay that hangs shows something."""

    async def start(*_: object) -> None:
        raise ends

    async def fence(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(replay_group, "_start", start)
    monkeypatch.setattr(replay_group, "get_run_logger", lambda: logging.getLogger("replay"))
    monkeypatch.setattr(fleet, "ask", fence)
    policy = SimpleNamespace(replay=SimpleNamespace(timeout_s=1.0))
    case: Any = SimpleNamespace(ctx=SimpleNamespace(policy=policy), job="toy", broken_epoch=1)
    ended = await replay_group.play(case, "h0", [], None)
    assert replay._failed([ended]) == ((0,) if evident else ())
    assert bool(replay._not_replayed(([ended], [ended]))) is not evident
