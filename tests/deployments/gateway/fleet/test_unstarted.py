"""A submission that was cut short leaves no job that neither runs nor may be submitted again."""

from __future__ import annotations

import pytest

from holdfast.deployments.gateway.fleet.unstarted import AFTER_S
from holdfast.errors import UnavailableError
from holdfast.models.job import JobSpec, JobState
from holdfast.models.machine import MachineState
from holdfast.storage.ledger import Ledger
from holdfast.testing.gateway_kit import JOB, Kit, rank, start_epoch

BODY = {
    "spec": {"name": JOB, "script": "train.py", "machines": 2, "ranks_per_machine": 2},
    "code_version": "v1",
}


async def pool(kit: Kit) -> None:
    """Two machines stand by."""
    for name in ("m0", "m1"):
        await kit.register(name)


async def look(kit: Kit, seconds: float = 1.0) -> None:
    """The gateway looks, after ``seconds``."""
    kit.clock.advance(seconds)
    await kit.gateway.site.refresh()
    await kit.gateway.unstarted.tick()
    await kit.settled()


def out_of_reach(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger goes away with the order to start, so that the failure cannot be recorded either."""
    set_job = Ledger.set_job

    def away(*_: object, **__: object) -> None:
        raise UnavailableError("the ledger does not answer")

    async def launch(*_: object, **__: object) -> None:
        monkeypatch.setattr(Ledger, "set_job", away)
        raise UnavailableError("this gateway has not reached the ledger for 6 s: it does not act")

    monkeypatch.setattr(kit.acts, "launch", launch)
    monkeypatch.setattr(Ledger, "set_job", set_job)


async def test_what_a_503_left_may_be_submitted_again_at_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a stop before."""
    await pool(kit)
    with monkeypatch.context() as broken:
        out_of_reach(kit, broken)
        await kit.post("/v1/jobs", BODY, 503)
    assert kit.ledger.job(JOB).state is JobState.PAUSED
    job = await kit.post("/v1/jobs", BODY)
    assert (job["state"], job["machines"]) == ("running", ["m0", "m1"])


async def test_what_a_503_left_is_failed_soon(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """People read that it does not run, and its machines stand by."""
    await pool(kit)
    with monkeypatch.context() as broken:
        out_of_reach(kit, broken)
        await kit.post("/v1/jobs", BODY, 503)
        await look(kit)  # the ledger is away as yet
    await look(kit)
    assert kit.ledger.job(JOB).state is JobState.FAILED
    assert len(kit.ledger.machines(MachineState.STANDBY)) == 2


async def test_a_job_whose_gateway_died_before_it_was_started_is_failed(kit: Kit) -> None:
    """The next one finds it."""
    await pool(kit)
    kit.ledger.add_job(JobSpec.model_validate(BODY["spec"]), "v1")
    await kit.restart()
    await look(kit)
    assert kit.ledger.job(JOB).state is JobState.FAILED


@pytest.mark.parametrize(("runs", "state"), [(True, JobState.RUNNING), (False, JobState.FAILED)])
async def test_a_job_whose_gateway_died_while_it_was_started(kit: Kit, runs: bool, state: JobState) -> None:
    """It is as its machines say: what trains goes on."""
    await pool(kit)
    kit.ledger.add_job(JobSpec.model_validate(BODY["spec"]), "v1")
    claimed = kit.ledger.claim_standbys(JOB, 2)
    kit.ledger.set_job(JOB, machines=[machine.name for machine in claimed])
    start_epoch(kit.ledger, JOB)
    await kit.restart()
    await look(kit)
    assert kit.ledger.job(JOB).state is JobState.PAUSED
    if runs:
        for number, machine in enumerate(("m0", "m1")):
            await kit.beat(machine, [rank(2 * number + each, 3, kit.clock.now()) for each in (0, 1)])
    await look(kit, AFTER_S)
    assert kit.ledger.job(JOB).state is state


async def test_a_job_that_is_being_submitted_is_left_alone(kit: Kit) -> None:
    """And one that a person holds."""
    await pool(kit)

    async def looked() -> None:
        await look(kit)
        await look(kit, AFTER_S)

    kit.acts.during_launch = looked
    await kit.post("/v1/jobs", BODY)
    kit.clock.advance(1.0)
    await kit.post(f"/v1/jobs/{JOB}/pause")
    await looked()
    assert kit.ledger.job(JOB).state is JobState.PAUSED
