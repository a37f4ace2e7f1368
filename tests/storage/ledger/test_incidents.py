from typing import Any

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import StaleError, UnknownError
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from holdfast.storage.ledger import Ledger
from holdfast.storage.ledger.incidents import MAX_ALERTS_PER_EPOCH
from tests.storage.ledger.samples import alert, classified, incident, running_job

RECOVERED = IncidentState.RECOVERED


def test_incidents_are_numbered_per_job(ledger: Ledger) -> None:
    """Each with the answer of the classification, and the alerts it came from."""
    running_job(ledger)
    running_job(ledger, "bert")
    first = incident(ledger)
    assert (first.id, first.attempt, first.state, first.epoch) == ("gpt-1", 1, IncidentState.OPEN, 1)
    assert (first.machine, first.confidence, first.reasons) == ("m0", 0.7, ("because",))
    assert first.alerts == (alert(),)
    assert [incident(ledger).id, incident(ledger, job="bert").id] == ["gpt-2", "bert-1"]
    with pytest.raises(UnknownError, match="no job 'x'"):
        ledger.open_incident("x", classified(), 1, [], 1.0)
    assert ledger.incident("gpt-1") == first


def test_values_that_are_not_finite_survive_in_evidence(ledger: Ledger) -> None:
    """As text: not every database takes NaN in JSON."""
    running_job(ledger)
    opened = ledger.open_incident("gpt", classified(), 1, [alert(value=float("nan"))], 6.0)
    assert ledger.incident(opened.id).alerts[0].evidence == {"value": "NaN"}


def test_the_oldest_open_incident_acts(ledger: Ledger, clock: FakeClock) -> None:
    """The next one follows when it is closed."""
    running_job(ledger)
    incident(ledger)
    clock.advance(1)
    incident(ledger)
    assert [i.id for i in ledger.incidents(job="gpt")] == ["gpt-2", "gpt-1"]
    assert [i.id for i in ledger.incidents(limit=1)] == ["gpt-2"]
    acting = ledger.acting("gpt")
    assert acting is not None
    assert acting.id == "gpt-1"
    closed = ledger.set_incident("gpt-1", state=RECOVERED, summary="went well")
    assert closed.closed_at == clock.now()
    acting = ledger.acting("gpt")
    assert acting is not None
    assert acting.id == "gpt-2"
    assert [i.id for i in ledger.incidents(state=RECOVERED)] == ["gpt-1"]
    ledger.set_incident("gpt-2", state=IncidentState.DISMISSED)
    assert ledger.acting("gpt") is None


def test_incidents_are_listed_and_counted_by_what_they_are(ledger: Ledger) -> None:
    """Each filter alone, and together."""
    running_job(ledger)
    for machine, name in (("m1", "job_hang"), ("m2", "job_hang"), ("m1", "nan_loss")):
        found = classified().model_copy(update={"machine": machine, "incident_class": IncidentClass(name)})
        ledger.open_incident("gpt", found, 1, [], 6.0)
    ledger.set_incident("gpt-1", state=RECOVERED)

    def listed(**filters: Any) -> list[str]:
        return [each.id for each in ledger.incidents(**filters)]

    hang = IncidentClass.JOB_HANG
    assert listed(machine="m1") == ["gpt-3", "gpt-1"]
    assert listed(incident_class=hang) == ["gpt-2", "gpt-1"]
    assert listed(incident_class=hang, machine="m1", state=RECOVERED, job="gpt") == ["gpt-1"]
    assert listed(incident_class=hang, machine="m3") == []
    every = {
        (hang, RECOVERED): 1,
        (hang, IncidentState.OPEN): 1,
        (IncidentClass.NAN_LOSS, IncidentState.OPEN): 1,
    }
    assert ledger.incident_counts() == ledger.incident_counts(job="gpt") == every
    assert ledger.incident_counts(machine="m2") == {(hang, IncidentState.OPEN): 1}
    assert ledger.incident_counts(job="other") == {}


def test_the_same_alert_joins_once(ledger: Ledger) -> None:
    """A storm of one signal does not make the incident grow."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.join(opened.id, [alert(), alert(rank=1), alert(rank=1)])
    assert ledger.incident(opened.id).alerts == (alert(), alert(rank=1))
    ledger.join(opened.id, [alert(rank=1)])
    assert len(ledger.incident(opened.id).alerts) == 2
    assert ledger.acting(opened.job, evidence=False) == ledger.incident(opened.id).model_copy(
        update={"alerts": ()}
    )


def test_an_alert_storm_is_kept_within_bounds(ledger: Ledger) -> None:
    """Per epoch: the ranks of the next generation are still heard."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.join(opened.id, [alert(rank=rank) for rank in range(MAX_ALERTS_PER_EPOCH + 50)])
    assert len(ledger.incident(opened.id).alerts) == MAX_ALERTS_PER_EPOCH
    ledger.join(opened.id, [alert(epoch=2)])
    assert ledger.incident(opened.id).alerts[-1].epoch == 2


def test_a_closed_incident_takes_nothing_more(ledger: Ledger) -> None:
    """No alert, no attempt, no action."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.set_incident(opened.id, state=RECOVERED)
    for act in (
        lambda: ledger.join(opened.id, [alert(rank=1)]),
        lambda: ledger.next_attempt(opened.id, 1),
        lambda: ledger.begin(opened.id, 1, "pause:e1", "pause", {}),
    ):
        with pytest.raises(StaleError, match="is recovered, not open"):
            act()


def test_only_one_reconciler_starts_the_next_attempt(ledger: Ledger) -> None:
    """The slower one gets an error for its old knowledge."""
    running_job(ledger)
    opened = incident(ledger)
    assert ledger.next_attempt(opened.id, 1).attempt == 2
    with pytest.raises(StaleError, match="is at attempt 2, not 1"):
        ledger.next_attempt(opened.id, 1)


def test_an_old_attempt_may_not_act(ledger: Ledger) -> None:
    """A playbook run that was given up and still lives stops at its next action."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.begin(opened.id, 1, "pause:e1", "pause", {})
    ledger.next_attempt(opened.id, 1)
    for key in ("pause:e1", "start:e2"):
        with pytest.raises(StaleError, match="attempt 1 was replaced by 2"):
            ledger.begin(opened.id, 1, key, "pause", {})
    assert [action.key for action in ledger.actions(opened.id)] == ["pause:e1"]


def test_a_second_run_learns_what_is_done(ledger: Ledger, clock: FakeClock) -> None:
    """The first intent and the first result of a key stand."""
    running_job(ledger)
    opened = incident(ledger)
    begun = ledger.begin(opened.id, 1, "evict:m0", "evict", {"machine": "m0"})
    assert (begun.state, begun.result, begun.begun_at) == (ActionState.INTENT, {}, clock.now())
    ledger.next_attempt(opened.id, 1)
    again = ledger.begin(opened.id, 2, "evict:m0", "evict", {"machine": "other"})
    assert again == begun
    clock.advance(2)
    done = ledger.finish(opened.id, "evict:m0", {"gone": True})
    assert (done.state, done.result, done.done_at) == (ActionState.DONE, {"gone": True}, clock.now())
    assert ledger.finish(opened.id, "evict:m0", {"gone": False}) == done
    assert ledger.fail(opened.id, "evict:m0", "late") == done
    assert ledger.begin(opened.id, 2, "evict:m0", "evict", {}) == done


def test_a_failed_action_may_still_succeed(ledger: Ledger) -> None:
    """The next attempt does it again."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.begin(opened.id, 1, "start:e2", "start", {})
    failed = ledger.fail(opened.id, "start:e2", "port in use")
    assert (failed.state, failed.result) == (ActionState.FAILED, {"error": "port in use"})
    assert ledger.begin(opened.id, 1, "start:e2", "start", {}).state is ActionState.FAILED
    assert ledger.finish(opened.id, "start:e2").state is ActionState.DONE
    with pytest.raises(UnknownError, match="no action 'x'"):
        ledger.finish(opened.id, "x")


def test_changes_keep_what_they_do_not_name(ledger: Ledger) -> None:
    """And refuse fields that must not be set by hand."""
    running_job(ledger)
    opened = incident(ledger)
    changed = ledger.set_incident(
        opened.id, machine=None, incident_class=IncidentClass.NAN_LOSS, reasons=("a", "b"), last_good_step=7
    )
    assert changed == opened.model_copy(
        update={
            "machine": None,
            "incident_class": IncidentClass.NAN_LOSS,
            "reasons": ("a", "b"),
            "last_good_step": 7,
        }
    )
    with pytest.raises(TypeError, match="attempt"):
        ledger.set_incident(opened.id, attempt=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownError, match="no incident 'gpt-9'"):
        ledger.set_incident("gpt-9", summary="x")


def test_every_alert_is_logged_with_its_outcome(ledger: Ledger) -> None:
    """Also those that led to nothing."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.record_alert(alert(), opened.id, "opened")
    ledger.record_alert(alert(rank=1), None, "resolved: never acts")
    assert [(a.rank, a.incident_id, a.outcome) for a in ledger.alerts()] == [
        (1, None, "resolved: never acts"),
        (0, "gpt-1", "opened"),
    ]
    assert [a.rank for a in ledger.alerts(incident_id="gpt-1")] == [0]
    assert len(ledger.alerts(limit=1)) == 1


@pytest.mark.parametrize("state", [JobState.STOPPED, JobState.DONE])
@pytest.mark.parametrize("by", ["its playbook", "the gateway"])
def test_a_job_that_was_stopped_meanwhile_has_not_failed(ledger: Ledger, state: JobState, by: str) -> None:
    """One that has failed is started again when its wait is over."""
    running_job(ledger)
    opened = incident(ledger)
    ledger.set_job("gpt", state=state)
    if by == "its playbook":
        ledger.end_incident(opened.id, IncidentState.NEEDS_HUMAN, "x", 9.0, fails=True)
    else:
        ledger.give_up(opened.id, "x")
    assert ledger.incident(opened.id).state is IncidentState.NEEDS_HUMAN
    assert ledger.job("gpt").state is state
