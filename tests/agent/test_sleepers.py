"""A whole machine asleep (stopped by a signal, agent and rank) while its job goes on elsewhere: when it wakes, its rank
saves as of its own epoch, and nothing of that gets into what the new epoch's ranks save."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.models.checkpoint import Shard, Tier
from holdfast.storage.checkpoints.remote import verify
from holdfast.storage.objects.s3 import S3Store
from tests.agent.gateway import FakeGateway, until
from tests.agent.generations import NEW, Generations
from tests.agent.site import AgentProcess
from tests.storage import servers

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(800)]

BUCKET = "sleepers"
EVERY = 5
SCRIPT = """
import contextlib, time, torch, torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(200, 200)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
session = holdfast.Session()
step = session.restore(state)
report = lambda word: print(word, step, model.weight.double().sum().item().hex(), flush=True)
report("start")
while True:
    step += 1
    x = torch.randn(2, 200, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    report("step")
    session.step(step)
    session.checkpoint(state)
    with contextlib.suppress(RuntimeError):  # the sleeper goes on alone
        dist.all_reduce(torch.zeros(1))
    time.sleep(0.05)
"""


@pytest.fixture
def store() -> Iterator[S3Store]:
    with servers.moto() as endpoint:
        made = S3Store(endpoint=endpoint, bucket=BUCKET, access_key="a", secret_key="k")
        made.ensure_bucket()
        yield made


@pytest.fixture
def job(home: Path, gateway: FakeGateway, store: S3Store) -> Iterator[Generations]:
    environment = servers.s3_settings(store.endpoint, BUCKET, "k", "a")
    with Generations(home, gateway, environment, job="sleepers", script=SCRIPT).on("s0", "s1", "s2") as made:
        yield made


async def test_a_woken_epoch_never_mixes_into_the_new_one(job: Generations, store: S3Store) -> None:
    """Shards in memory and on peers, checkpoints in S3, and what the third epoch is restored to."""
    sleeper, *others = job.machines
    job.machines[:] = [sleeper, others[0]]
    await job.start(NEW, env={}, s3_every_steps=EVERY)
    await job.held(3, Tier.PEER)
    asleep = [psutil.Process(sleeper.process.pid), *sleeper.family()]
    for each in asleep:
        each.suspend()
    try:
        job.machines[:] = [others[1], others[0]]
        epoch = job.epoch
        await job.fence()
        plan = await job.plan()
        await job.start(plan, env={}, s3_every_steps=EVERY)
        job.stored(plan.step + 1, epoch=2)
        before = saves(sleeper, epoch)
    finally:
        for each in reversed(asleep):
            each.resume()
    until(lambda: saves(sleeper, epoch) > before + 3, 120, "the sleeper to save again")

    newest = max(each.step for each in await job.shards() if each.epoch == job.epoch)
    await job.held(newest + EVERY, Tier.PEER)
    assert saves(sleeper, epoch) > before + 3
    remote = job.stored(newest + EVERY, epoch=2)
    for each in job.uploaded():
        assert not [file for file in verify.verify(store, each.key) if file.problem]
        assert each.epoch == 2 or each.step <= plan.step + EVERY
    assert remote.epoch == 2

    await job.fence()
    shards = await job.shards()
    plan = await job.plan()
    assert {of(shards, each.rank, plan.step) for each in plan.sources} == {2}
    lines = {line(job.machines[rank], rank, 2, f"step {plan.step} ") for rank in (0, 1)}
    await job.start(plan, env={}, s3_every_steps=EVERY)
    assert {line(job.machines[rank], rank, 3, f"start {plan.step} ") for rank in (0, 1)} == lines
    sleeper.stop(signal.SIGKILL)


def saves(machine: AgentProcess, epoch: int) -> int:
    """Steps, each of which was saved, that a machine's rank did."""
    return machine.log("sleepers", 0, epoch).count("step ")


def of(shards: list[Shard], rank: int, step: int) -> int:
    """The one epoch of a rank's shards of a step."""
    (epoch,) = {each.epoch for each in shards if (each.rank, each.step) == (rank, step)}
    return epoch


def line(machine: AgentProcess, rank: int, epoch: int, begin: str) -> str:
    """A rank's report of its weights."""

    def found() -> list[str]:
        lines = machine.log("sleepers", rank, epoch).splitlines()
        return [each.removeprefix(begin) for each in lines if each.startswith(begin)]

    return until(found, 60, f"rank {rank} to say {begin!r}")[0]
