"""Planned moves: what is asked for, which standby takes over, whether there is time."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState, MoveSource
from holdfast.policies.config.planned_move import PlannedMovePolicy
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import planned_move
from holdfast.policies.pool.planned_move import MoveRequest

POLICY = Policy.load().planned_move


def incident(
    *evidence: dict[str, Any], machine: str | None = "a1", kind: AlertKind = AlertKind.PLANNED_MOVE
) -> Incident:
    """One that asks to leave a machine."""
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=IncidentClass.PLANNED_MOVE,
        state=IncidentState.OPEN,
        epoch=1,
        machine=machine,
        alerts=tuple(
            Alert(kind=kind, job="gpt", machine=machine, at=1.0, evidence=each) for each in evidence
        ),
        detected_at=1.0,
        opened_at=1.0,
    )


def test_the_newest_request_counts_and_the_earliest_deadline() -> None:
    """A notice may be repeated with less time left."""
    found = planned_move.asked(
        incident(
            {"source": "maintenance", "deadline_at": 50.0},
            {"source": "preemption", "text": "spot", "deadline_at": 90.0},
        )
    )
    assert found == MoveRequest(machine="a1", source=MoveSource.PREEMPTION, text="spot", deadline_at=50.0)
    assert found.description == "preemption: spot"


def test_a_person_in_the_prefect_ui_asks_by_hand() -> None:
    """Such a run has an alert of kind manual; without a machine nothing can be moved."""
    found = planned_move.asked(incident({"text": "noisy fan"}, kind=AlertKind.MANUAL))
    assert found == MoveRequest(machine="a1", text="noisy fan")
    assert planned_move.asked(incident({}, machine=None)) is None


def test_a_sign_that_a_machine_will_fail_is_a_precursor() -> None:
    """With what the detector saw; a request beside it outweighs it."""
    sign = incident({"detail": "2000 correctable errors"}, kind=AlertKind.GPU_ECC_CORRECTABLE)
    found = planned_move.asked(sign)
    assert found == MoveRequest(machine="a1", source=MoveSource.PRECURSOR, text="2000 correctable errors")
    both = sign.model_copy(update={"alerts": (*sign.alerts, *incident({"source": "drain"}).alerts)})
    assert planned_move.asked(both) == MoveRequest(machine="a1", source=MoveSource.DRAIN)


def test_standbys_are_tried_in_the_order_given() -> None:
    """So many as the policy allows."""
    found = planned_move.targets(MoveRequest(machine="a1"), ["b1", "a9", "b2", "a3"], (), 3)
    assert found.names == ("b1", "a9", "b2")


def test_excluded_standbys_are_not_taken() -> None:
    """Those of another group and those that flap, even when one is wished for."""
    request = MoveRequest(machine="a1", to="a3")
    assert planned_move.targets(MoveRequest(machine="a1"), ["a3", "b1"], ["a3"], 3).names == ("b1",)
    assert "a3 does not stand by" in planned_move.targets(request, ["a3", "b1"], ["a3"], 3).why
    assert planned_move.targets(request, ["a3", "b1"], (), 3).names == ("a3",)
    assert "no standby" in planned_move.targets(MoveRequest(machine="a1"), ["a1"], (), 3).why


def test_time_left_decides_over_checks_and_the_switch() -> None:
    """Little time: the short checks. Less than the margin: no switch."""
    soon = MoveRequest(machine="a1", deadline_at=100.0)
    assert planned_move.hurried(soon, 100.0 - POLICY.hurried_s + 1, POLICY)
    assert not planned_move.hurried(soon, 100.0 - POLICY.hurried_s, POLICY)
    assert not planned_move.too_late(soon, 100.0 - POLICY.margin_s, POLICY)
    assert "recovers as from a lost machine" in planned_move.too_late(soon, 99.0, POLICY)
    assert not planned_move.too_late(MoveRequest(machine="a1"), 1e12, POLICY)
    assert not planned_move.hurried(MoveRequest(machine="a1"), 1e12, POLICY)


def test_every_source_has_a_fate() -> None:
    """A policy file that leaves one out is refused by name."""
    values = POLICY.model_dump()
    del values["afterwards"][MoveSource.DRAIN]
    with pytest.raises(ValidationError, match="drain is missing"):
        PlannedMovePolicy.model_validate(values)


def test_only_signs_of_machines_are_precursors() -> None:
    """A NaN is nothing that a move would help against."""
    with pytest.raises(ValidationError, match="non_finite is no sign of a machine"):
        PlannedMovePolicy.model_validate(POLICY.model_dump() | {"precursors": ["non_finite"]})


def test_a_request_is_withdrawn_by_its_own_source() -> None:
    """The cloud may call its maintenance off, not the person who asks as well; a later notice counts again."""
    asked = incident({"source": "maintenance"}, {"source": "drain"})

    def over(source: str, at: float = 2.0, machine: str = "a1") -> Alert:
        evidence = {"source": source}
        return Alert(kind=AlertKind.PLANNED_MOVE, machine=machine, at=at, firing=False, evidence=evidence)

    assert not planned_move.withdrawn(asked, asked.alerts)
    assert not planned_move.withdrawn(asked, [over("maintenance")])
    assert planned_move.withdrawn(asked, [over("maintenance"), over("drain")])
    assert not planned_move.withdrawn(asked, [over("maintenance", 0.5), over("drain")])
    assert not planned_move.withdrawn(asked, [over("maintenance", machine="a2"), over("drain")])
    by_hand = incident({"source": "maintenance"}, {"source": "by_hand"})
    assert not planned_move.withdrawn(by_hand, [over("maintenance")])
    assert not planned_move.withdrawn(incident(), [over("maintenance")])
