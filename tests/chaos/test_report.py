"""Reports of chaos: they list a fault that was not recovered, and a machine that went although no fault had hit it."""

from __future__ import annotations

from typing import Any

from holdfast.chaos import report as reports
from holdfast.chaos.fault_plan import Strike
from holdfast.chaos.report import ChaosReport, JobSeen
from holdfast.chaos.strike import Hit
from holdfast.demo.weights import WeightsComparison
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState, History
from holdfast.models.job import JobState
from holdfast.policies.accounting import ettr

Struck = tuple[Strike, tuple[Hit, ...]]


def strike(at: float, fault: str = "kill-rank", fired: bool = True, machine: str | None = "m1") -> Struck:
    planned = Strike(at_s=at, faults=(fault,), slots=(1,), local_ranks=(0,), hold_s=5)
    return planned, (Hit(fault=fault, at=at, fired=fired, machine=machine),)


def incident(number: int, at: float, recovered_at: float | None, **changes: Any) -> Incident:
    state = IncidentState.RECOVERED if recovered_at else IncidentState.OPEN
    return Incident(
        id=f"gpt-{number}",
        job="gpt",
        incident_class=IncidentClass.JOB_CRASH,
        state=state,
        epoch=number,
        detected_at=at,
        opened_at=at,
        recovered_at=recovered_at,
        **changes,
    )


def evicts(machine: str) -> Action:
    return Action(
        incident_id="gpt-1", key=f"evict:{machine}", kind="evict", state=ActionState.DONE, begun_at=11
    )


def seen(
    until: float, stuck_from: float | None = None, stuck_to: float = 0, well: bool = True
) -> list[JobSeen]:
    """A step a second, but for a while."""
    step, found = 0, []
    for at in range(int(until)):
        step += not (stuck_from is not None and stuck_from <= at < stuck_to)
        found.append(JobSeen(at=at, step=step, well=well))
    return found


def made(struck: list[Struck], incidents: list[Incident], looks: list[JobSeen], **more: Any) -> ChaosReport:
    actions = more.pop("actions", {})
    state = more.pop("state", JobState.DONE)
    measured = ettr.measure(History(), 100.0)
    return reports.report(
        "gpt",
        1,
        strikes=struck,
        incidents=incidents,
        actions=actions,
        seen=looks,
        state=state,
        measured=measured,
        **more,
    )


def test_a_recovered_fault_says_how_long_it_took() -> None:
    """From the strike to the first step that is new, as the ledger has it."""
    found = made([strike(10)], [incident(1, 11, 14.0)], seen(60, 10, 14))
    assert found.ok
    assert found.lines[0].incidents == ("gpt-1",)
    assert found.lines[0].recovered_s is not None
    assert 4 <= found.lines[0].recovered_s <= 6


def test_a_fault_that_training_does_not_notice_needs_no_incident() -> None:
    """Steps go on, and the services answer."""
    assert made([strike(10, "kill-gateway", machine=None)], [], seen(60)).ok
    assert not made([strike(10, "kill-gateway", machine=None)], [], seen(60, well=False)).ok


def test_a_job_that_stands_still_is_not_recovered() -> None:
    """Without an incident, and with one that stays open."""
    assert made([strike(10)], [], seen(60, 10, 60)).problems == ("kill-rank at 10 s was not recovered",)
    assert not made([strike(10)], [incident(1, 11, None)], seen(60)).ok


def test_a_dismissed_incident_is_over_where_the_job_trains_on() -> None:
    """A stop that ended before the playbook looked; not where the job stands still, or a person is asked."""
    struck = [strike(10, "stop-rank")]
    dismissed = incident(1, 12, None).model_copy(update={"state": IncidentState.DISMISSED, "closed_at": 30.0})
    found = made(struck, [dismissed], seen(60, 10, 15))
    assert found.ok
    assert found.lines[0].incidents == ("gpt-1",)
    assert found.lines[0].recovered_s is not None
    assert 5 <= found.lines[0].recovered_s <= 8
    assert not made(struck, [dismissed], seen(60, 10, 60)).ok
    for state in (IncidentState.NEEDS_HUMAN, IncidentState.STOPPED):
        assert not made(struck, [dismissed.model_copy(update={"state": state})], seen(60, 10, 15)).ok


def test_a_strike_into_an_open_incident_belongs_to_it() -> None:
    """Both are recovered with it, or neither."""
    struck, looks = [strike(10), strike(15)], seen(60, 10, 20)
    assert [line.incidents for line in made(struck, [incident(1, 11, 20.0)], looks).lines] == [("gpt-1",)] * 2
    assert len(made(struck, [incident(1, 11, None)], looks).problems) == 2


def test_an_eviction_of_a_machine_that_nothing_hit_is_a_problem() -> None:
    """One that a fault had hit is not."""
    rows = [incident(1, 11, 14.0)]
    right = made([strike(10)], rows, seen(60), actions={"gpt-1": [evicts("m1")]})
    wrong = made([strike(10)], rows, seen(60), actions={"gpt-1": [evicts("m3")]})
    assert right.ok
    assert wrong.problems == ("m3 was evicted by gpt-1, and no fault hit it",)


def test_nothing_that_fired_is_no_success() -> None:
    """A run must be able to fail."""
    assert made([strike(10, fired=False)], [], seen(60)).problems == ("no fault fired: nothing was shown",)


def test_weights_that_differ_or_cannot_be_compared_are_a_problem() -> None:
    """Asked for, they must be equal."""
    equal = WeightsComparison(equal=True, tensors=3)
    assert made([strike(10)], [incident(1, 11, 14.0)], seen(60), weights=equal, compared=True).ok
    for found in (None, WeightsComparison(equal=False, tensors=3, differing=("a",))):
        found_report = made([strike(10)], [incident(1, 11, 14.0)], seen(60), weights=found, compared=True)
        assert not found_report.ok
