"""The scope of a person's refusal of an eviction."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState
from holdfast.policies.config.policy import Policy
from holdfast.policies.escalate import refused

POLICY = Policy.load().classify


def alert(kind: str = "gpu_row_remap_failed", **fields: Any) -> Alert:
    known = {"kind": AlertKind(kind), "machine": "m1", "incarnation": "i1", "at": 1.0}
    return Alert.model_validate(known | {"evidence": {"device": "GPU 0"}} | fields)


def past(*alerts: Alert, closed_at: float | None = 10.0) -> Incident:
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=IncidentClass.MACHINE_FAULT,
        state=IncidentState.RECOVERED,
        epoch=1,
        alerts=alerts or (alert(job="gpt", epoch=1),),
        detected_at=0.0,
        opened_at=0.0,
        closed_at=closed_at,
    )


def answer(approve: bool, by: str) -> Action:
    result = {"approve": approve, "by": by}
    return Action(
        incident_id="gpt-1",
        key="approve:m1",
        kind="approve",
        begun_at=0,
        state=ActionState.DONE,
        result=result,
    )


def test_the_same_sign_is_covered_by_any_reporter() -> None:
    """With the job and epoch of a later time, or another monitor's fingerprint."""
    again = [alert(job="gpt", epoch=7), alert(fingerprint="another-monitor")]
    assert refused.covers(past(), again, 20.0, POLICY)


@pytest.mark.parametrize(
    "new",
    [
        alert("gpu_lost"),
        alert(evidence={"device": "GPU 3"}),
        alert(incarnation="i2"),
        alert(machine="m2"),
        Alert(kind=AlertKind.RANK_EXIT, job="gpt", machine="m1", rank=2, epoch=2, at=5.0),
        Alert(kind=AlertKind.MANUAL, job="gpt", machine="m1", at=5.0),
    ],
    ids=lambda each: f"{each.kind.value}-{each.machine}-{each.incarnation}",
)
def test_what_is_new_is_not_covered(new: Alert) -> None:
    """Beside the known sign, too."""
    assert not refused.covers(past(), [alert(), new], 20.0, POLICY)


def test_a_no_is_over_after_a_day_and_none_while_its_incident_is_open() -> None:
    """A day later another person may be on call."""
    assert not refused.covers(past(), [alert()], 11.0 + refused.FOR_S, POLICY)
    assert not refused.covers(past(closed_at=None), [alert()], 20.0, POLICY)


def test_only_a_persons_newest_word_is_a_no() -> None:
    """Not the policy's default at a deadline, nor a monitor's."""
    assert refused.by_whom([answer(False, "ann")]) == "ann"
    assert refused.by_whom([answer(False, "ann"), answer(True, "bob")]) == ""
    assert refused.by_whom([answer(False, "the policy file")]) == ""
    assert refused.by_whom([answer(False, "the monitor")]) == ""
    assert refused.by_whom([]) == ""
