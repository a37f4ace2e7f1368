import pytest

from holdfast.clock import FakeClock
from holdfast.errors import RefusedError, StaleError, UnknownError
from holdfast.models.alert import IncidentState
from holdfast.models.job import Elastic, JobState
from holdfast.models.machine import MachineState
from holdfast.models.roles import RoleSpec
from holdfast.storage.ledger import Ledger
from tests.storage.ledger.samples import incident, register, running_job, spec


def test_a_submitted_job_waits_for_its_launch(ledger: Ledger, clock: FakeClock) -> None:
    """It is paused, at epoch 0, without machines."""
    job = ledger.add_job(spec(), "v1")
    assert (job.state, job.epoch, job.machines, job.code_version) == (JobState.PAUSED, 0, (), "v1")
    assert job.submitted_at == clock.now()
    assert ledger.job("gpt") == job
    assert ledger.jobs() == [job]


def test_a_job_that_has_not_ended_is_not_replaced(ledger: Ledger) -> None:
    """The refusal names the state and the remedy."""
    running_job(ledger)
    with pytest.raises(RefusedError, match=r"'gpt' is running.*holdfast stop gpt"):
        ledger.add_job(spec(), "v2")


def test_only_jobs_that_changed_are_made_again(ledger: Ledger) -> None:
    """Of thousands that have ended a look costs next to nothing; each change is seen, also one back to what was."""
    running_job(ledger)
    ledger.add_job(spec(name="old"), "v1")
    ledger.set_job("old", state=JobState.DONE)
    first = {job.name: job for job in ledger.jobs()}
    ledger.set_job("gpt", machines=["m7"], spec=first["gpt"].spec.resized(1))
    second = {job.name: job for job in ledger.jobs()}
    assert second["old"] is first["old"]
    assert second["gpt"] == ledger.job("gpt") != first["gpt"]
    ledger.set_job("gpt", machines=first["gpt"].machines, spec=first["gpt"].spec)
    third = {job.name: job for job in ledger.jobs()}
    assert third == first
    assert third["old"] is first["old"]


@pytest.mark.parametrize("ended", [JobState.STOPPED, JobState.FAILED, JobState.DONE])
def test_epochs_go_on_counting_when_an_ended_job_is_replaced(ledger: Ledger, ended: JobState) -> None:
    """Leftovers of the old job stay fenced."""
    running_job(ledger)
    assert [ledger.next_epoch("gpt"), ledger.next_epoch("gpt")] == [1, 2]
    ledger.set_job("gpt", state=ended, machines=["m0"])
    again = ledger.add_job(spec(machines=2), "v2")
    assert (again.epoch, again.machines, again.done_at, again.spec.machines) == (2, (), None, 2)
    assert ledger.next_epoch("gpt") == 3


def test_open_incidents_of_a_job_that_is_replaced_are_dismissed(ledger: Ledger, clock: FakeClock) -> None:
    """Their playbooks, stopped with the site, would stop the new job's ranks and fence its first epoch."""
    running_job(ledger)
    running_job(ledger, "other")
    mine, others = incident(ledger), incident(ledger, job="other")
    ledger.set_job("gpt", state=JobState.STOPPED)
    clock.advance(5)
    ledger.add_job(spec(), "v2")
    dismissed = ledger.incident(mine.id)
    assert (dismissed.state, dismissed.closed_at) == (IncidentState.DISMISSED, clock.now())
    assert dismissed.summary == "the job was submitted again"
    assert ledger.incident(others.id).state is IncidentState.OPEN
    with pytest.raises(StaleError):
        ledger.begin(mine.id, 1, "pause:e1", "pause", {})


def test_only_what_is_given_is_changed(ledger: Ledger, clock: FakeClock) -> None:
    """None leaves a field; becoming done notes the time, once."""
    running_job(ledger)
    job = ledger.set_job("gpt", machines=["m1", "m0"])
    assert (job.state, job.machines, job.code_version) == (JobState.RUNNING, ("m1", "m0"), "v1")
    done = ledger.set_job("gpt", state=JobState.DONE)
    clock.advance(5)
    assert ledger.set_job("gpt", state=JobState.DONE).done_at == done.done_at == clock.now() - 5


def test_no_epoch_of_a_job_that_was_stopped_is_counted_for_a_recovery(ledger: Ledger) -> None:
    """Its machines may be others' by now; a person may start it again."""
    running_job(ledger)
    assert ledger.next_epoch("gpt", unless_ended=True) == 1
    ledger.set_job("gpt", state=JobState.STOPPED)
    with pytest.raises(StaleError, match="stopped"):
        ledger.next_epoch("gpt", unless_ended=True)
    assert ledger.next_epoch("gpt") == 2


def test_a_job_that_was_stopped_while_a_person_started_it_does_not_run(
    ledger: Ledger, clock: FakeClock
) -> None:
    """Its machines were given back; one that had ended before may be started again."""
    running_job(ledger)
    ended_at = ledger.set_job("gpt", state=JobState.STOPPED, done_at=clock.now()).done_at
    epoch = ledger.next_epoch("gpt")
    assert ledger.set_running("gpt", epoch, ended_at).done_at is None
    assert ledger.job("gpt").state is JobState.RUNNING
    clock.advance(5)
    stopped = ledger.set_job("gpt", state=JobState.STOPPED, done_at=clock.now())
    with pytest.raises(StaleError, match="'gpt' is stopped"):
        ledger.set_running("gpt", epoch, ended_at)
    with pytest.raises(StaleError, match="'gpt' is stopped"):
        ledger.set_running("gpt", epoch, None)
    with pytest.raises(StaleError, match=f"epoch {epoch}"):
        ledger.set_running("gpt", epoch - 1, stopped.done_at)
    assert ledger.job("gpt") == stopped


def test_a_job_whose_machines_an_earlier_stop_gave_back_meanwhile_does_not_run(
    ledger: Ledger, clock: FakeClock
) -> None:
    """It was started again before the stop had come to its end: another job may get its machines."""
    running_job(ledger)
    for name in ("m0", "m1"):
        register(ledger, name)
    names = [machine.name for machine in ledger.claim_standbys("gpt", 2)]
    ledger.set_job("gpt", machines=names, state=JobState.STOPPED, done_at=clock.now())
    epoch = ledger.next_epoch("gpt")
    ledger.give_back(["m1"], "gpt")
    with pytest.raises(StaleError, match="m1 does not serve it"):
        ledger.set_running("gpt", epoch, clock.now())
    ledger.claim_standbys("other", 1)
    with pytest.raises(StaleError, match="m1 does not serve it"):
        ledger.set_running("gpt", epoch, clock.now())
    ledger.set_machine("m1", state=MachineState.GONE, job=None)  # lost: that is for a recovery
    assert ledger.set_running("gpt", epoch, clock.now()).state is JobState.RUNNING


def test_a_job_that_was_stopped_stays_so_for_a_recovery_that_comes_late(ledger: Ledger) -> None:
    running_job(ledger)
    for state, becomes in ((JobState.PAUSED, JobState.RECOVERING), (JobState.STOPPED, JobState.STOPPED)):
        ledger.set_job("gpt", state=state)
        assert ledger.set_job("gpt", state=JobState.RECOVERING, unless=JobState.STOPPED).state is becomes


def test_a_job_that_runs_again_has_no_end(ledger: Ledger, clock: FakeClock) -> None:
    """Else its time would be accounted until then, for ever."""
    running_job(ledger)
    ledger.set_job("gpt", state=JobState.STOPPED, done_at=clock.now())
    assert ledger.set_job("gpt", machines=["m0"]).done_at == clock.now()
    assert ledger.set_job("gpt", state=JobState.RUNNING).done_at is None


def test_an_unknown_job_is_named_with_those_there_are(ledger: Ledger) -> None:
    """So that a typing error is seen at once."""
    running_job(ledger)
    for ask in (ledger.job, ledger.next_epoch, ledger.set_job):
        with pytest.raises(UnknownError, match=r"no job 'gtp'\. Jobs: gpt"):
            ask("gtp")


def test_another_size_keeps_what_was_changed_in_the_spec_meanwhile(ledger: Ledger) -> None:
    """A role may be scaled while a playbook shrinks the job; a job that is not elastic keeps its size."""
    cache = RoleSpec(script="cache.py", replicas=1)
    sizes = Elastic(min=1, want=4, max=4)
    ledger.add_job(spec().model_copy(update={"elastic": sizes, "roles": {"cache": cache}}), "v1")
    ledger.scale_role("gpt", "cache", 3)
    job = ledger.set_size("gpt", ["m0", "m1"])
    assert (job.machines, job.spec.machines, job.spec.roles["cache"].replicas) == (("m0", "m1"), 2, 3)
    assert job.spec.elastic is not None
    assert job.spec.elastic.want == 4
    with pytest.raises(ValueError, match="machines"):
        ledger.set_size("gpt", [f"m{number}" for number in range(5)])
    assert ledger.job("gpt") == job
