from __future__ import annotations

import pytest

from holdfast.deployments.gateway.runs.flow_runs import RunPhase
from holdfast.deployments.gateway.runs.judge import backoff_s
from holdfast.errors import StaleError
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch

FIRST, SECOND = f"{JOB}-1#1", f"{JOB}-1#2"


@pytest.mark.parametrize("phase", [RunPhase.FAILED, RunPhase.ENDED])
async def test_run_that_ended_without_recovery_is_followed_by_the_next_attempt(
    kit: Kit, phase: RunPhase
) -> None:
    """Crashed, failed, cancelled, or completed with the incident still open: again, once."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(FIRST, phase)
    await kit.tick()
    await kit.tick()
    assert kit.runs.created == [FIRST, SECOND]
    (incident,) = kit.incidents()
    assert (incident.attempt, incident.flow_run_id) == (2, SECOND)


async def test_deleted_run_is_followed_by_the_next_attempt(kit: Kit) -> None:
    """A person deleted the run in the UI."""
    await kit.running_job()
    await kit.crash()
    del kit.runs.runs[FIRST]
    await kit.tick()
    assert kit.runs.created == [FIRST, SECOND]


async def test_run_that_is_never_started_is_followed_by_the_next_attempt(kit: Kit) -> None:
    """Pending or scheduled for longer than the policy's patience."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(FIRST, RunPhase.WAITING)
    await kit.tick(14)
    assert kit.runs.created == [FIRST]
    await kit.tick(2)
    assert kit.runs.created == [FIRST, SECOND]


async def test_what_is_slow_to_start_is_waited_for_ever_longer(kit: Kit) -> None:
    """A pod whose image is pulled takes minutes: each run that never started doubles the patience with the next."""
    await kit.running_job()
    await kit.crash()
    patience = 15.0
    for attempt in range(1, 9):
        kit.runs.set(f"{JOB}-1#{attempt}", RunPhase.WAITING)
        await kit.tick(patience - 1)
        assert len(kit.runs.created) == attempt
        await kit.tick(2)
        assert len(kit.runs.created) == attempt + 1
        patience = min(2 * patience, 240.0)


async def test_patience_is_as_at_first_with_attempts_that_began(kit: Kit) -> None:
    """Only runs that never started show that this site starts runs slowly."""
    await kit.running_job()
    await kit.crash()
    begin_attempt(kit)
    kit.runs.set(FIRST, RunPhase.FAILED)
    await kit.tick(5)
    kit.runs.set(SECOND, RunPhase.WAITING)
    await kit.tick(14)
    assert kit.runs.created == [FIRST, SECOND]
    await kit.tick(2)
    assert kit.runs.created == [FIRST, SECOND, f"{JOB}-1#3"]


async def test_silent_run_is_followed_by_the_next_attempt(kit: Kit) -> None:
    """Running, but no sign in the ledger for too long."""
    await kit.running_job()
    await kit.crash()
    kit.clock.advance(50)
    kit.ledger.begin(f"{JOB}-1", 1, "pause:e1", "pause", {})
    kit.ledger.finish(f"{JOB}-1", "pause:e1", {})
    await kit.tick(50)
    assert kit.runs.created == [FIRST]
    await kit.tick(20)
    assert kit.runs.created == [FIRST, SECOND]


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
async def test_patience_with_a_run_is_not_measured_by_a_clock_that_is_set(kit: Kit, step_s: float) -> None:
    """The gateway's wall clock is set by hours while a run is under way: it is silent no sooner and no later."""
    await kit.running_job()
    await kit.crash()
    await kit.tick(1)
    kit.clock.set(kit.clock.now() + step_s)
    await kit.tick(40)
    assert kit.runs.created == [FIRST]
    await kit.tick(30)
    assert kit.runs.created == [FIRST, SECOND]


async def test_run_in_the_middle_of_a_long_act_is_left_alone(kit: Kit) -> None:
    """An act that was begun (a replay, a wait for a standby) may take longer than silence may."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.begin(f"{JOB}-1", 1, "replay:1", "replay", {})
    await kit.tick(120)
    assert kit.runs.created == [FIRST]
    await kit.tick(400)
    assert kit.runs.created == [FIRST, SECOND]


async def test_run_whose_process_is_gone_is_followed_by_the_next_attempt(kit: Kit) -> None:
    """Process and worker were killed together: no report came, but it can be seen."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(FIRST, RunPhase.RUNNING, alive=False)
    await kit.tick(1)
    assert kit.runs.created == [FIRST]
    await kit.tick(2)
    assert kit.runs.created == [FIRST, SECOND]


async def test_suspended_run_waits_for_its_human(kit: Kit) -> None:
    """A run that asks for approval is in order, however long it takes."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(FIRST, RunPhase.SUSPENDED)
    await kit.tick(100_000)
    assert kit.runs.created == [FIRST]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_run_that_can_be_resumed_no_more_is_followed_by_the_next_attempt(
    kit: Kit, *, asks: bool
) -> None:
    """An automation suspended it, without a report; a question of a playbook has a deadline of its own."""
    await kit.running_job()
    await kit.crash()
    if asks:
        kit.ledger.begin(f"{JOB}-1", 1, "approve:m1", "approve", {"deadline": 1e12, "default": "refuse"})
    kit.runs.set(FIRST, RunPhase.SUSPENDED, message="Suspended by Automation 7")
    kit.runs.runs[FIRST] = kit.runs.runs[FIRST].model_copy(update={"resumable_s": 3600.0})
    await kit.tick(3590)
    assert kit.runs.created == [FIRST]
    await kit.tick(20)
    assert kit.runs.created == ([FIRST] if asks else [FIRST, SECOND])
    if not asks:
        await kit.gateway.leftovers.tick()
        assert "another run works on" in kit.runs.cancelled[FIRST]


async def test_closed_incident_is_left_alone(kit: Kit) -> None:
    """The run completed and the incident is closed: done."""
    await kit.running_job()
    await kit.crash()
    kit.close_incident(f"{JOB}-1")
    kit.runs.set(FIRST, RunPhase.ENDED)
    await kit.tick(100)
    assert kit.runs.created == [FIRST]


async def test_after_the_last_attempt_a_human_is_asked(kit: Kit) -> None:
    """Attempts are bounded; then it is as if a playbook had met a limit: ranks stopped, job failed."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    await fail_all_attempts(kit)
    (incident,) = kit.incidents()
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "6 attempts" in incident.summary
    assert len(kit.runs.created) == 6
    assert kit.ledger.job(JOB).state is JobState.FAILED
    assert ("halt", JOB) in kit.acts.calls
    # No playbook found anything: who ended its runs is the matter, not the job's code.
    assert (
        "Needs runs of its playbook that come to their end: the Prefect UI shows who or what ended"
        in incident.summary
    )
    assert "another version of the code" not in incident.summary


async def test_a_job_that_trains_is_not_stopped_because_its_runs_fail(kit: Kit) -> None:
    """It is slow, and the worker is killed each time that it looks at it: that is no fault of the job."""
    await kit.running_job()
    await kit.alert(kind="throughput_decline", epoch=1)
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    await fail_all_attempts(kit)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.FAIL_SLOW
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "6 attempts" in incident.summary
    assert "the job runs on meanwhile" in incident.summary
    assert kit.ledger.job(JOB).state is JobState.RUNNING
    assert ("halt", JOB) not in kit.acts.calls
    (wait,) = kit.ledger.waits()
    assert wait.runs_on


async def test_a_slow_job_whose_playbook_had_stopped_it_is_given_up(kit: Kit) -> None:
    """The control: nothing of it trains any more, and it waits as after any other fault."""
    await kit.running_job()
    await kit.alert(kind="throughput_decline", epoch=1)
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    kit.ledger.begin(f"{JOB}-1", 1, "pause:e1", "pause", {})
    await fail_all_attempts(kit)
    assert kit.incidents()[0].state is IncidentState.NEEDS_HUMAN
    assert kit.ledger.job(JOB).state is JobState.FAILED
    assert ("halt", JOB) in kit.acts.calls


async def test_a_run_whose_incident_is_given_up_can_do_nothing_any_more(kit: Kit) -> None:
    """It was only slow, and wakes while its ranks are stopped: no playbook would watch what it starts then."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    for _ in range(5):
        begin_attempt(kit)
        kit.runs.set(f"{JOB}-1#{kit.incidents()[0].attempt}", RunPhase.FAILED)
        await kit.tick(10)
    begin_attempt(kit)
    (incident,) = kit.incidents()
    kit.ledger.take_job(incident.id, incident.attempt, "slow", "slow", 1000.0)
    mine = kit.ledger.holding(incident.id, JOB, "slow")
    kit.runs.set(f"{JOB}-1#{incident.attempt}", RunPhase.FAILED)
    await kit.tick(10)
    assert kit.incidents()[0].state is IncidentState.NEEDS_HUMAN
    with pytest.raises(StaleError):
        mine.next_epoch(JOB)
    with pytest.raises(StaleError):
        kit.ledger.end_incident(incident.id, IncidentState.RECOVERED, "up again", kit.clock.now())


async def test_the_incident_of_a_job_that_was_stopped_is_dismissed_with_its_run(kit: Kit) -> None:
    """The site was shut down meanwhile: further attempts would hold up who resumes or submits the job."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.set_job(JOB, state=JobState.STOPPED)
    begin_attempt(kit)
    kit.runs.set(FIRST, RunPhase.FAILED)
    await kit.tick(10)
    assert kit.runs.created == [FIRST]
    (incident,) = kit.incidents()
    assert (incident.state, incident.summary) == (IncidentState.DISMISSED, "the job was stopped")
    assert kit.ledger.job(JOB).state is JobState.STOPPED
    assert kit.ledger.waits() == []


async def test_runs_that_never_began_are_no_attempts(kit: Kit) -> None:
    """A worker that is away must not use the incident's attempts up."""
    await kit.running_job()
    await kit.crash()
    for _ in range(20):
        for key in list(kit.runs.runs):
            if kit.runs.runs[key].phase is RunPhase.RUNNING:
                kit.runs.set(key, RunPhase.WAITING)
        await kit.tick(250)
    (incident,) = kit.incidents()
    assert incident.state is IncidentState.OPEN
    assert len(kit.runs.created) > 6


async def fail_all_attempts(kit: Kit) -> None:
    """Have every attempt begin and fail, until there is none any more."""
    for _ in range(20):
        begin_attempt(kit)
        for key in list(kit.runs.runs):
            if kit.runs.runs[key].phase is RunPhase.RUNNING:
                kit.runs.set(key, RunPhase.FAILED)
        await kit.tick(10)


def begin_attempt(kit: Kit) -> None:
    """As the playbook's first step does."""
    (incident,) = kit.incidents()
    if incident.state is not IncidentState.OPEN:
        return
    if incident.first_task_at is None:
        kit.ledger.set_incident(incident.id, first_task_at=kit.clock.now())
    elif incident.attempt > 1:
        kit.ledger.begin(incident.id, incident.attempt, f"attempt:{incident.attempt}", "attempt", {})


def test_attempts_slow_down() -> None:
    """The second attempt comes at once; a playbook that fails at once may not spin."""
    assert [backoff_s(attempt) for attempt in range(1, 7)] == [0, 1, 2, 4, 8, 8]


async def test_an_incident_read_before_its_run_was_recorded_is_not_started_again(kit: Kit) -> None:
    """The reconciler reads, the start comes to its end, the reconciler acts: the run would lose the job to a second."""
    await kit.running_job()
    kit.runs.away = True
    await kit.crash()
    (incident,) = kit.incidents()
    kit.gateway.dispatcher.start(incident.model_copy(update={"flow_run_id": None}))
    await kit.settled()
    assert kit.runs.offline_started == [(f"{JOB}-1", 2)]
    assert kit.incidents()[0].attempt == 2


@pytest.mark.parametrize("able", ["", "it began", "it was refused"])
async def test_a_run_that_raised_before_its_first_step_is_followed_by_one_without_prefect(
    kit: Kit, able: str
) -> None:
    """A worker without HOLDFAST_HOME: each run ended like the first one, until a person looked at them."""
    await kit.running_job()
    await kit.crash()
    if able == "it began":
        begin_attempt(kit)
    error = "RefusedError: another" if able == "it was refused" else "SettingsError: set HOLDFAST_HOME."
    failed = kit.runs.runs[FIRST].model_copy(
        update={"phase": RunPhase.FAILED, "raised": True, "message": error}
    )
    kit.runs.runs[FIRST] = failed
    await kit.tick()
    (incident,) = kit.incidents()
    if able:
        assert (kit.runs.created, kit.runs.offline_started) == ([FIRST, SECOND], [])
        return
    assert [name for name, _ in kit.runs.offline_started] == [f"{JOB}-1"]
    assert "failed before its first step (SettingsError: set HOLDFAST_HOME.)" in incident.reasons[-1]
    again = f"{JOB}-1#{incident.attempt}"
    kit.runs.runs[str(incident.flow_run_id)] = failed.model_copy(update={"id": again})
    await kit.tick(10)
    assert len(kit.runs.offline_started) == 1, "it was reported, and tried"


async def test_gateway_killed_before_the_run_was_made(kit: Kit) -> None:
    """The incident was written first: the next gateway makes its run, once."""
    await kit.running_job()
    kit.gateway.dispatcher.start = lambda incident: None  # type: ignore[method-assign]
    await kit.crash()
    assert not kit.runs.created
    await kit.restart()
    assert kit.runs.created == [FIRST]
    assert kit.incidents()[0].flow_run_id == FIRST


async def test_gateway_killed_after_the_run_was_made(kit: Kit) -> None:
    """Created but not noted: the same key finds the same run."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.set_incident(f"{JOB}-1", flow_run_id=None)
    await kit.restart()
    assert kit.runs.created == [FIRST]
    assert kit.incidents()[0].flow_run_id == FIRST


async def test_gateway_killed_while_alerts_settle(kit: Kit) -> None:
    """Cascading failures that waited for their root wait in the next gateway too, and it still knows duplicates."""
    await kit.running_job()
    await kit.crash(rank=0, cascade=True)
    await kit.restart()
    kit.clock.advance(1)
    await kit.gateway.correlator.settle()
    await kit.settled()
    assert len(kit.incidents()) == 1
    await kit.restart()
    assert (await kit.crash(rank=0, cascade=True))["outcome"] == "duplicate"


async def test_dead_run_is_found_by_the_next_gateway(kit: Kit) -> None:
    """Gateway, worker and playbook were killed together."""
    await kit.running_job()
    await kit.crash()
    kit.runs.set(FIRST, RunPhase.RUNNING, alive=False)
    kit.clock.advance(5)
    await kit.restart()
    assert kit.runs.created == [FIRST, SECOND]


async def test_second_incident_waits_for_the_first(kit: Kit) -> None:
    """A code update during a recovery acts when the job runs again."""
    await kit.running_job()
    await kit.crash()
    answer = await kit.post(f"/v1/jobs/{JOB}/update", {"version": "v2"})
    assert answer["outcome"] == "waits"
    await kit.tick()
    assert kit.runs.created == [FIRST]
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    assert kit.runs.created == [FIRST, f"{JOB}-2#1"]


async def test_update_that_the_restart_took_along_is_dismissed(kit: Kit) -> None:
    """The recovery's restart merged the pending version: nothing is left to do."""
    await kit.running_job()
    await kit.crash()
    await kit.post(f"/v1/jobs/{JOB}/update", {"version": "v2"})
    assert kit.ledger.pending_version(JOB) == "v2"
    kit.ledger.set_job(JOB, code_version="v2")
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    assert kit.runs.created == [FIRST]
    assert kit.incidents()[1].state is IncidentState.DISMISSED


async def test_crash_of_the_new_epoch_that_joined_last_counts_again(kit: Kit) -> None:
    """A rank of the new epoch died just as the incident was closed: it is not lost with it."""
    await kit.running_job()
    await kit.crash()
    await kit.tick(0)
    start_epoch(kit.ledger, JOB)
    assert (await kit.crash(rank=3, epoch=2))["outcome"] == "joined"
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    assert kit.runs.created == [FIRST, f"{JOB}-2#1"]
    assert kit.incidents()[1].epoch == 2
