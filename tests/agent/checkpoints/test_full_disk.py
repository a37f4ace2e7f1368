"""Real agents whose disk tier is full, a file system of a few MiB: training goes on, it is counted and reported, and
copies come again when there is room."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast import secret
from holdfast.models.agent import JobOnMachine, RankPhase
from holdfast.models.checkpoint import Tier
from holdfast.models.setback import Place, Setback
from holdfast.paths import machine_dir
from tests.agent.gateway import FakeGateway, until
from tests.agent.generations import NEW, Generations
from tests.agent.site import AgentProcess
from tests.e2e.waiting import wait_for
from tests.mounts import small

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(800)]

EVERY = 5
SCRIPT = """
import time, torch, torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = holdfast.Session()
step = session.restore({"model": model, "optimizer": optimizer})
while True:
    step += 1
    optimizer.zero_grad()
    model(torch.randn(2, 300)).square().mean().backward()
    optimizer.step()
    session.step(step)
    session.checkpoint({"model": model, "optimizer": optimizer})
    dist.all_reduce(torch.zeros(1))
    time.sleep(0.05)
"""


@pytest.fixture
def disk(home: Path) -> Iterator[Path]:
    """The disk tier of the first machine: six MiB, three shards and a bit."""
    folder = machine_dir(home, "f0") / "ckpt"
    folder.parent.mkdir(parents=True)
    with small(folder, 6) as mounted:
        yield mounted


@pytest.fixture
def job(home: Path, gateway: FakeGateway, disk: Path) -> Iterator[Generations]:
    with Generations(home, gateway, {}, job="full", script=SCRIPT).on("f0", "f1") as made:
        yield made


async def test_training_goes_on_and_copies_come_again(job: Generations, disk: Path) -> None:
    """Filled up while the job runs: no rank ends, saves in memory go on, and what was copied before stays."""
    await job.start(NEW, env={}, disk_every_steps=EVERY)
    before = await job.held(1, Tier.DISK)
    pids = ranks(job)
    assert setbacks(job) == {}
    fill(disk / "filler")

    (setback,) = wait_for(
        lambda: f"failed copies to be reported: {newest_beats(job)}, {job.machines[0].agent_log()[-3000:]}",
        lambda: [each for each in setbacks(job).values() if each.count > 1],
        120,
    )
    assert (setback.place, "No space left on device" in setback.reason) == (Place.DISK, True)
    newest = max(each.step for each in await job.shards())
    await job.held(newest + 2 * EVERY, Tier.MEMORY)
    assert list(setbacks(job)) == ["f0"]
    assert await counted(job.machines[0]) > 1
    left = [each.step for each in await job.shards() if (each.machine, each.tier) == ("f0", Tier.DISK)]
    assert left
    assert min(left) >= before
    assert not list(disk.rglob("*.part"))

    (disk / "filler").unlink()
    await job.held(newest + 2 * EVERY, Tier.DISK)
    until(lambda: setbacks(job) == {}, 60)
    assert ranks(job) == pids


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def newest_beats(job: Generations) -> dict[str, JobOnMachine]:
    """The newest heartbeat of each machine."""
    return {
        beat.machine: run for beat in list(job.gateway.heartbeats) for run in beat.jobs if run.job == job.job
    }


def setbacks(job: Generations) -> dict[str, Setback]:
    return {machine: each for machine, run in newest_beats(job).items() for each in run.setbacks}


def ranks(job: Generations) -> dict[int, int]:
    """Process of each rank that runs."""
    found = [each for run in newest_beats(job).values() for each in run.ranks]
    return {each.rank: each.pid for each in found if each.phase is RankPhase.RUNNING}


async def counted(machine: AgentProcess) -> float:
    """Copies that failed, as the agent's metrics have it."""
    url = f"http://{machine.gateway.registered[machine.machine].address}/metrics"
    async with httpx.AsyncClient() as client:
        token = f"Bearer {secret.read(machine.home / 'secret')}"
        metrics = (await client.get(url, headers={"Authorization": token})).text
    found = re.search(r'^holdfast_disk_copies_total\{outcome="failed"\} (\S+)$', metrics, re.MULTILINE)
    assert found, metrics
    return float(found[1])
