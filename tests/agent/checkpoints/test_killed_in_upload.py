"""A real agent is killed in the middle of an upload: nothing half counts, nothing stays behind, and the job goes on."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.models.checkpoint import RestorePlan, Tier
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.verify import verify
from holdfast.storage.objects.s3 import S3Store
from tests.agent.gateway import FakeGateway, eventually, until
from tests.agent.generations import NEW, Generations
from tests.storage import servers
from tests.storage.proxy import Proxy, proxy

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

KEYS = ("holdfast", "not-a-secret")
TRAIN = """
import time, torch, torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
session = holdfast.Session()
start = session.restore(state)
if start:
    assert (model.bias == start).all(), f"the bias is {model.bias[:3]} after step {start}"
for step in range(start + 1, 1_000_000):
    dist.barrier()
    time.sleep(0.02)  # so that the store keeps up
    with torch.no_grad():
        model.bias.fill_(step)
    session.step(step, loss=1.0)
    session.checkpoint(state)
"""
REQUESTS = {
    "a rank's part": (1, rb"PUT \S*/__1_0\.distcp"),
    "word of a part": (1, rb"PUT \S*/parts/1\.json"),
    "the metadata": (0, rb"PUT \S*/\.metadata"),
    "the manifest": (0, rb"PUT \S*/manifest\.json"),
}
"""Which machine sends it, and what it is: under way when its agent is killed."""


_jobs = itertools.count()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Store]:
    with servers.rclone(tmp_path / "objects", *KEYS) as endpoint:
        made = S3Store(endpoint=endpoint, bucket="killed", access_key=KEYS[0], secret_key=KEYS[1])
        made.ensure_bucket()
        yield made


@pytest.fixture
def between(store: S3Store) -> Iterator[Proxy]:
    with proxy(store.endpoint) as made:
        yield made


@pytest.fixture
async def job(home: Path, gateway: FakeGateway, between: Proxy) -> AsyncIterator[Generations]:
    environment = servers.s3_settings(between.endpoint, "killed", KEYS[1], KEYS[0])
    with Generations(home, gateway, environment, job=f"torn{next(_jobs)}", script=TRAIN).on(
        "u0", "u1"
    ) as made:
        yield made


def problems(store: S3Store, key: str) -> list[str]:
    return [file.problem for file in verify(store, key) if file.problem]


@pytest.mark.thorough
@pytest.mark.parametrize("request_of", REQUESTS)
async def test_an_agent_that_is_killed_in_an_upload(
    job: Generations, store: S3Store, between: Proxy, request_of: str
) -> None:
    """Checkpoints listed in S3 are whole; memory has the newest step, and the new agent makes the next upload."""
    number, pattern = REQUESTS[request_of]
    victim = job.machines[number]
    await job.start(NEW, env={}, s3_every_steps=10)
    first = job.stored(1)
    between.set(cut=re.compile(pattern), on_cut=lambda: victim.process.send_signal(signal.SIGKILL))
    until(lambda: victim.process.poll() is not None, 120, "the agent is killed")
    between.set()
    listed = manifests.list_remote(store, job.job)
    assert first.step in {each.step for each in listed}
    assert [found for each in listed for found in problems(store, each.key)] == []

    job.machines[number] = victim = job.machine(victim.machine)
    victim.ready(150)
    await job.fence()
    plan: RestorePlan = await job.plan(*listed)
    assert plan.tier in (Tier.MEMORY, Tier.PEER), plan
    assert plan.step >= max(each.step for each in listed)
    await job.start(plan, env={}, s3_every_steps=10)
    later = job.stored(plan.step + 1, job.epoch)
    assert problems(store, later.key) == []

    async def left() -> bool:
        return not [path for machine in job.machines for path in machine.shm.rglob("transfers/*")]

    await eventually(left, 60)
