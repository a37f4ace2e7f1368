"""Agents' reports of their ranks' saves, put together and judged: one incident, with machine and last good step."""

from __future__ import annotations

from holdfast.models.agent import Report
from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass
from holdfast.models.replica import StateDigests
from holdfast.policies.diagnose.odd_replica import odd
from holdfast.tasks.detect import Request, _last_good_step
from holdfast.testing.gateway_kit import JOB, Kit

RANKS = {"m0": (0, 1), "m1": (2, 3)}


class Job:
    """Four ranks on two machines; their digests are reported through the endpoint that agents use."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.flipped: set[int] = set()

    async def save(self, step: int, *, epoch: int = 1, machines: tuple[str, ...] = ("m0", "m1")) -> None:
        for machine in machines:
            held = {
                rank: {"model.w": step * 7 + (rank in self.flipped) * (100 + rank), "model.v": step * 3}
                for rank in RANKS[machine]
            }
            await self.send(machine, StateDigests.of(step, held), epoch)
        await self.kit.gateway.replicas.tick()
        await self.kit.settled()

    async def send(self, machine: str, digests: StateDigests, epoch: int = 1) -> None:
        report = Report(machine=machine, incarnation="i1", job=JOB, epoch=epoch, holds=(digests,))
        await self.kit.post("/v1/agents/events", report.model_dump(mode="json"))

    def incident(self) -> Incident | None:
        found = self.kit.incidents()
        assert len(found) <= 1
        return found[0] if found else None


async def running(kit: Kit) -> Job:
    await kit.running_job()
    return Job(kit)


async def test_the_odd_machine_is_named_with_the_last_good_step(kit: Kit) -> None:
    """By itself; nothing is restored from after the last step at which all were the same."""
    job = await running(kit)
    for step in (1, 2, 4, 8):
        await job.save(step)
    assert job.incident() is None
    job.flipped = {3}
    await job.save(16)
    found = job.incident()
    assert found is not None
    assert (found.incident_class, found.machine, found.rank) == (IncidentClass.SILENT_CORRUPTION, "m1", 3)
    assert "model.w" in found.reasons[0], found.reasons
    assert "the same at step 8" in found.reasons[0], found.reasons
    assert _last_good_step(found, Request(job=JOB)) == 8
    assert kit.metric("replica_comparisons_total", outcome="differs") == 1


async def test_it_is_one_incident_however_often_it_is_seen(kit: Kit) -> None:
    """The bound stays that of the first."""
    job = await running(kit)
    for step in (1, 2, 4, 8):
        await job.save(step)
    job.flipped = {3}
    for step in (16, 32, 64):
        await job.save(step)
    found = job.incident()
    assert found is not None
    assert _last_good_step(found, Request(job=JOB)) == 8


async def test_no_machine_is_named_where_none_is_known(kit: Kit) -> None:
    """Two of four, each another way."""
    job = await running(kit)
    for step in (1, 2, 4, 8):
        await job.save(step)
    job.flipped = {0, 3}
    await job.save(16)
    found = job.incident()
    assert found is not None
    assert (found.incident_class, found.machine) == (IncidentClass.SILENT_CORRUPTION, None)


async def test_a_machine_speaks_of_its_own_ranks_and_of_this_epoch(kit: Kit) -> None:
    """Its reports of other machines' ranks, or of another epoch, are left out."""
    job = await running(kit)
    for step in (1, 2, 4, 8):
        await job.save(step)
    foreign = {rank: {"model.w": 1, "model.v": 48} for rank in (0, 1, 2, 3)}
    await job.send("m1", StateDigests.of(16, foreign))
    job.flipped = {3}
    await job.save(16, epoch=7)
    assert job.incident() is None


async def test_a_step_at_which_the_odd_rank_did_not_report_is_not_good_for_it(kit: Kit) -> None:
    """It may have been odd then already."""
    job = await running(kit)
    for step in (1, 2, 4, 8):
        await job.save(step)
    job.flipped = {3}
    for step in (16, 32, 64):
        await job.save(step, machines=("m0",))
    await job.save(128)
    found = job.incident()
    assert found is not None
    assert _last_good_step(found, Request(job=JOB)) == 8


async def test_a_machine_that_does_not_report_keeps_no_other_from_being_compared(kit: Kit) -> None:
    """Its ranks are left out once newer steps are reported."""
    job = await running(kit)
    for step in (1, 2, 4, 8, 16, 32, 64):
        await job.save(step, machines=("m0",))
    job.flipped = {1}
    for step in (128, 256, 512):
        await job.save(step, machines=("m0",))
    found = job.incident()
    assert found is not None
    assert found.machine is None, "two replicas"


def alert(machine: str | None, *ranks: int, incarnation: str | None = None) -> Alert:
    evidence = {"ranks": list(ranks), "detail": f"{machine} is odd"}
    return Alert(
        kind=AlertKind.REPLICA_DIFFERS,
        job=JOB,
        machine=machine,
        at=1.0,
        incarnation=incarnation,
        evidence=evidence,
    )


PRESENT = {"m0": "i1", "m1": "i1"}


def test_a_rank_that_is_odd_wherever_it_runs_accuses_no_machine() -> None:
    """Its program does what the others do not."""
    found = odd([alert("m1", 3)], [alert("m9", 3)], PRESENT)
    assert found.machines == ()
    assert "rank 3 on m9" in found.reasons[0]
    assert odd([alert("m1", 3)], [alert("m9", 2), alert("m1", 3)], PRESENT).machines == ("m1",)


def test_who_is_accused() -> None:
    """Machines of the job as they are now, each once."""
    assert odd([alert("m1", 3), alert("m1", 2), alert("m0", 0)], [], PRESENT).machines == ("m1", "m0")
    assert odd([alert(None), alert("m7", 3), alert("m1", 3, incarnation="i0")], [], PRESENT).machines == ()
    assert odd([Alert(kind=AlertKind.METRIC_JUMP, machine="m0", at=1.0)], [], PRESENT).machines == ()
