"""Every kind of state through real agents, one tier after the other: memory, a peer, the disk, S3, other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.wire import ENV_PATIENCE
from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan, Tier
from holdfast.storage.objects.s3 import S3Store
from tests.agent.gateway import FakeGateway, eventually, until
from tests.agent.generations import NEW, Generations
from tests.agent.site import AgentProcess
from tests.storage import servers

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.session.kinds import whole
whole.main(int(sys.argv[1]), own=sys.argv[2] == "own")
"""
JOB, BUCKET = "kinds", "kinds"
EVERY = 3
FIRST = {"FIRST": "1", ENV_PATIENCE: "60"}
PATIENT = {ENV_PATIENCE: "60"}


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with servers.moto() as endpoint:
        S3Store(endpoint=endpoint, bucket=BUCKET, access_key="a", secret_key="k").ensure_bucket()
        yield servers.s3_settings(endpoint, BUCKET, "k")


class Job(Generations):
    """Each generation compares what came back."""

    async def launch(self, plan: RestorePlan, last: int, *, own: bool = True) -> None:
        """Start a new epoch from what the plan names, up to the step ``last``."""
        await self.start(
            plan,
            str(last),
            "own" if own else "alike",
            env=PATIENT if plan.step else FIRST,
            s3_every_steps=EVERY,
            disk_every_steps=EVERY,
        )

    def alike(self, age: int) -> int:
        """Every rank found all kinds as they should be at ``age``; the step after which they are."""
        steps = set()
        for rank, machine in enumerate(self.machines):

            def printed(rank: int = rank, machine: AgentProcess = machine) -> list[str]:
                log = machine.log(JOB, rank, self.epoch)
                assert "Traceback" not in log, log[-4000:]
                return [line for line in log.splitlines() if line.startswith(f"age {age} at step")]

            (line, *_) = until(printed, 240)
            assert line.endswith("kinds alike"), line
            steps.add(int(line.split()[4].rstrip(":")))
        (step,) = steps
        return step

    async def rehearsed(self) -> None:
        """Every rank's restore was rehearsed, and would come back."""

        async def over() -> bool:
            rehearsals = []
            for machine in self.machines:
                async with machine.client as client:
                    rehearsals += [each.rehearsed for each in (await client.state()).jobs if each.job == JOB]
            assert not any(each and each.failed for each in rehearsals), rehearsals
            return all(each and each.step for each in rehearsals)

        await eventually(over, 120)


@pytest.fixture
def job(home: Path, gateway: FakeGateway, environment: dict[str, str]) -> Iterator[Job]:
    with Job(home, gateway, environment, job=JOB, script=SCRIPT).on("k0", "k1") as made:
        yield made


@pytest.mark.thorough
async def test_every_kind_comes_back_from_a_peer_and_from_s3(job: Job) -> None:
    """Three generations, each compared with a run that nothing happened to; the first is rehearsed as well."""
    await job.launch(NEW, 1)
    await job.held(job.alike(1), Tier.PEER)
    await job.rehearsed()
    await from_peer(job, 1)
    await from_s3(job, 2, job.stored(job.alike(2)))
    job.alike(3)


@pytest.mark.thorough
async def test_every_kind_comes_back_from_every_tier(job: Job) -> None:
    """Five generations, each from another tier, then two at other numbers of ranks."""
    await job.launch(NEW, 1)
    await job.held(job.alike(1), Tier.MEMORY)
    await job.rehearsed()
    await from_memory(job, 1)
    await job.held(job.alike(2), Tier.PEER)
    await from_peer(job, 2)
    await job.held(job.alike(3), Tier.DISK)
    await from_disk(job, 3)
    stored = job.stored(job.alike(4))
    await from_s3(job, 4, stored)
    job.alike(5)
    await job.rehearsed()
    await job.fence()
    for machines in (1, 3):
        await at_other_size(job, machines, 4, stored)


async def from_memory(job: Job, age: int) -> None:
    """All ranks end, no machine does."""
    await job.fence()
    plan = await job.plan()
    assert {each.tier for each in plan.sources} == {Tier.MEMORY}
    await job.launch(plan, age + 1)
    job.alike(age)


async def from_peer(job: Job, age: int) -> None:
    """One machine is lost for good."""
    job.lose(0, disk=True)
    job.machines[0] = job.machine("k9").ready(150)
    await job.fence()
    plan = await job.plan()
    assert {(each.rank, each.machine) for each in plan.sources} == {(0, "k1"), (1, "k1")}
    await job.launch(plan, age + 1)
    job.alike(age)


async def from_disk(job: Job, age: int) -> None:
    """All machines reboot."""
    for number in (0, 1):
        job.lose(number, disk=False)
    job.again()
    plan = await job.plan()
    assert {each.tier for each in plan.sources} == {Tier.DISK}
    await job.launch(plan, age + 1)
    job.alike(age)


async def from_s3(job: Job, age: int, stored: RemoteCheckpoint) -> None:
    """All machines are lost for good."""
    for number in (0, 1):
        job.lose(number, disk=True)
    job.again()
    plan = await job.plan(stored)
    assert plan.tier == Tier.S3
    await job.launch(plan, age + 1)
    job.alike(age)


async def at_other_size(job: Job, machines: int, age: int, stored: RemoteCheckpoint) -> None:
    """At another number of ranks what differs from rank to rank is left behind by name."""
    for number in range(len(job.machines)):
        job.lose(number, disk=True)
    job.machines[:] = [job.machine(f"w{machines}{i}") for i in range(machines)]
    for each in job.machines:
        each.ready(150)
    await job.launch(await job.plan(stored), age, own=False)
    job.alike(age)
    await job.fence()
