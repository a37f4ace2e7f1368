"""The gateway's record of a job's pauses and starts."""

from __future__ import annotations

from typing import Any

from holdfast.deployments.gateway.fleet.pauses import KnownPauses
from holdfast.models.agent import RankPhase, RankState
from holdfast.models.alert import IncidentClass
from holdfast.models.job import Job as StoredJob
from holdfast.models.job import JobSpec, JobState
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch

DECLARED = frozenset({"eval"})


def job(submitted_at: float = 1.0) -> StoredJob:
    spec = JobSpec(name="gpt", script="train.py", machines=1, ranks_per_machine=1)
    known = {"spec": spec, "state": JobState.RUNNING, "epoch": 1, "code_version": "v1", "machines": ("m0",)}
    return StoredJob.model_validate(known | {"submitted_at": submitted_at})


def state(done: int, at: float, **changes: Any) -> RankState:
    return RankState(rank=0, pid=1, phase=RankPhase.RUNNING, steps_done=done, step_at=at, **changes)


def test_pauses_are_remembered_by_phase_and_across_epochs() -> None:
    """The next evaluation of the next epoch may take as long."""
    known = KnownPauses()
    known.observe(job(), state(4, 100.0), state(5, 140.0), DECLARED)
    known.observe(job(), state(5, 140.0, activity="eval"), state(6, 3140.0), DECLARED)
    known.observe(job(), state(6, 3140.0), state(7, 3141.0), DECLARED)
    assert known.gap_s(job()) == 40.0
    assert known.learned(job()).phase_s == {"eval": 3000.0}


def test_holds_first_steps_and_steps_that_were_not_seen_say_nothing() -> None:
    """None of them is a pause that the job made."""
    known = KnownPauses()
    known.observe(job(), None, state(1, 900.0), DECLARED)
    known.observe(job(), state(0, 0.0), state(1, 900.0), DECLARED)
    known.observe(job(), state(4, 100.0), state(6, 900.0), DECLARED)
    known.observe(job(), state(4, 100.0, paused=True), state(5, 900.0), DECLARED)
    assert known.gap_s(job()) == 0.0


def test_what_a_host_slept_is_no_pause_of_the_job() -> None:
    """Else a hang would be looked for half an hour late from then on."""
    known = KnownPauses()
    known.observe(job(), state(4, 100.0), state(5, 3701.0), DECLARED, woke_at=3700.0)
    known.observe(job(), state(5, 3701.0, activity="eval"), state(6, 7400.0), DECLARED, woke_at=7390.0)
    assert known.gap_s(job()) == 1.0
    assert known.learned(job()).phase_s == {"eval": 10.0}


def test_another_submission_is_another_job() -> None:
    """It may compute something else."""
    known = KnownPauses()
    known.observe(job(), state(4, 100.0), state(5, 140.0), DECLARED)
    assert known.gap_s(job(submitted_at=2.0)) == 0.0
    known.keep(())
    assert not known._jobs


async def test_a_start_as_long_as_an_earlier_one_is_no_hang(kit: Kit) -> None:
    """The ledger has how long the first start took: another gateway knows it too."""
    running = await kit.running_job()
    ledger, limit_s = kit.ledger, kit.gateway.site.policy.hang.first_step_s
    kit.clock.advance(2 * limit_s)
    ledger.mark(JOB, running.epoch, 1, kit.clock.now())
    start_epoch(ledger, JOB)
    await kit.gateway.site.refresh()
    began = kit.clock.now()

    async def still_for(seconds: float) -> None:
        kit.clock.advance(began + seconds - kit.clock.now() - 4)
        for _ in range(2):
            kit.clock.advance(2)
            for name in running.machines:
                ranks = [
                    RankState(rank=rank, pid=9, phase=RankPhase.STARTING, step_at=began, process_state="S")
                    for rank in running.ranks_of(name)
                ]
                await kit.beat(name, ranks, epoch=2)
        await kit.gateway.hangs.tick()
        await kit.settled()

    factor = kit.gateway.site.policy.hang.start_factor
    await still_for(2 * limit_s * factor - 10)
    assert kit.incidents() == []
    await still_for(2 * limit_s * factor + 10)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_HANG
