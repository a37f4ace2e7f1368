"""Roots that join an incident while its playbook runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import FakeClock
from holdfast.models.agent import Register
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.job import JobSpec
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.tasks import firing, late
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext


@pytest.fixture
def case(tmp_path: Path) -> Iterator[RecoveryContext]:
    """An open crash of a job on eight machines, of which one may be evicted for each four."""
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1000.0))
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", ctx.clock)
    ledger.create()
    ctx.__dict__["ledger"] = ledger
    names = [f"m{number}" for number in range(8)]
    for name in names:
        ledger.register(
            Register(machine=name, incarnation="i1", address=f"{name}:1", data_address=f"{name}:2", pid=1)
        )
    ledger.add_job(JobSpec(name="gpt", script="train.py", machines=8, ranks_per_machine=1), "v1")
    ledger.set_job("gpt", machines=names)
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.9, reasons=("test",))
    incident = ledger.open_incident("gpt", found, 1, [], 1000.0)
    use(ctx)
    yield RecoveryContext(
        incident_id=incident.id, attempt=1, job="gpt", incident_class=IncidentClass.JOB_CRASH, broken_epoch=1
    ).within(ctx)
    use(None)
    ledger.close()


def join(
    case: RecoveryContext, *machines: str, kind: AlertKind = AlertKind.GPU_LOST, incarnation: str = "i1"
) -> None:
    case.ctx.ledger.join(
        case.incident_id,
        [Alert(kind=kind, job="gpt", machine=name, incarnation=incarnation, at=1001.0) for name in machines],
    )


def test_an_alert_that_is_over_ends_no_other_fault_of_its_machine(case: RecoveryContext) -> None:
    """Another device is another fault; a report that names none is about all of its kind."""
    ledger = case.ctx.ledger
    known = {"kind": AlertKind.GPU_LOST, "job": "gpt", "machine": "m3", "incarnation": "i1", "at": 1001.0}
    first, second = (
        Alert.model_validate(known | {"evidence": {"device": f"GPU {number}"}}) for number in (1, 2)
    )
    ledger.join(case.incident_id, [first, second])

    def over(**evidence: str) -> None:
        resolved = first.model_copy(update={"firing": False, "evidence": evidence})
        ledger.record_alert(resolved, case.incident_id, "resolved")

    over(device="GPU 1")
    assert firing.still(case.ctx, case.ctx.ledger.incident(case.incident_id)) == [second]
    over()
    assert firing.still(case.ctx, case.ctx.ledger.incident(case.incident_id)) == []


def test_a_sure_sign_that_joins_accuses(case: RecoveryContext) -> None:
    """With its reason, and certainty."""
    assert late.verdict(case) is None
    join(case, "m3")
    found = late.verdict(case)
    assert found is not None
    assert (found.suspects, found.confidence) == (("m3",), 1.0)
    assert "reported after the incident was opened" in found.evidence[0]


def test_what_is_not_sure_or_of_a_former_life_accuses_none(case: RecoveryContext) -> None:
    """Nor a machine of another job."""
    join(case, "m1", kind=AlertKind.GPU_THROTTLED)
    join(case, "m2", incarnation="i0")
    join(case, "m99")
    assert late.verdict(case) is None


def test_more_than_may_be_evicted_at_once_accuse_none(case: RecoveryContext) -> None:
    """A sensor that is wrong reports the same of all."""
    join(case, "m0", "m1")
    assert set(late.roots(case)) == {"m0", "m1"}
    join(case, "m2")
    assert late.verdict(case) is None


def test_what_was_evicted_is_not_accused_again(case: RecoveryContext) -> None:
    """The sign stays with the incident."""
    join(case, "m0", "m1")
    case.ctx.ledger.begin(case.incident_id, 1, "evict:m0", "evict", {})
    case.ctx.ledger.finish(case.incident_id, "evict:m0")
    assert set(late.roots(case)) == {"m1"}


def test_an_alert_that_fires_again_after_it_was_over_accuses(case: RecoveryContext) -> None:
    """In a later round of the incident: what counts is the newest report."""
    join(case, "m3")
    ledger, later = case.ctx.ledger, case.model_copy(update={"round": 1})
    fires = Alert(kind=AlertKind.GPU_LOST, job="gpt", machine="m3", incarnation="i1", at=1001.0)
    ledger.record_alert(fires, case.incident_id, "joined")
    assert set(late.roots(later)) == {"m3"}
    ledger.record_alert(fires.model_copy(update={"firing": False}), case.incident_id, "resolved")
    assert not late.roots(later)
    ledger.record_alert(fires, case.incident_id, "joined")
    assert set(late.roots(later)) == {"m3"}


def test_who_answers_again_is_accused_by_a_person_alone(case: RecoveryContext) -> None:
    """Machines that shared a switch were silent, and answer in the next round; one of them a person wants to go."""
    ledger = case.ctx.ledger
    join(case, "m3", "m4", kind=AlertKind.MACHINE_LOST)
    for key, silent in (("pause:e1", ["m3", "m4"]), ("pause:e1r1", [])):
        ledger.begin(case.incident_id, 1, key, "pause", {})
        ledger.finish(case.incident_id, key, {"silent": silent, "unreachable": silent})
    later = case.model_copy(update={"round": 1, "accused": ("m3", "m4")})
    assert late.accused(later) == ()
    join(case, "m3", kind=AlertKind.MANUAL)
    assert late.accused(later) == ("m3",)
