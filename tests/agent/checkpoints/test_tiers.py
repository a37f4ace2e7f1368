"""Real agents and torch ranks against a store that goes away, agents killed in the middle, and machines lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UnavailableError
from holdfast.models.agent import Fence, Hold, JobOnMachine, OpenRendezvous, Persist, Start
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, Shard
from holdfast.policies.restore import triggered_save
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.objects.s3 import S3Store
from tests.agent.gateway import FakeGateway, events, eventually, until
from tests.agent.site import AgentProcess
from tests.agent.test_training import TRAIN
from tests.storage import servers
from tests.storage.proxy import Proxy, proxy

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

KEY, SECRET, BUCKET = "agents", "not-a-secret", "tiers"
SLOW_TRAIN = TRAIN.replace("import sys,", "import sys, time,").replace(
    "    optimizer.step()", "    time.sleep(0.02)\n    optimizer.step()"
)


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.rclone(tmp_path_factory.mktemp("s3"), KEY, SECRET) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def direct(rclone: str) -> S3Store:
    """The store, past the proxy."""
    store = S3Store(endpoint=rclone, bucket=BUCKET, access_key=KEY, secret_key=SECRET)
    store.ensure_bucket()
    return store


@pytest.fixture(scope="module")
def broken(rclone: str, direct: S3Store) -> Iterator[Proxy]:
    with proxy(rclone) as made:
        yield made


@pytest.fixture(scope="module")
def environment(broken: Proxy) -> dict[str, str]:
    return servers.s3_settings(broken.endpoint, BUCKET, SECRET, KEY)


@pytest.fixture(scope="module")
def pair(home: Path, gateway: FakeGateway, environment: dict[str, str]) -> Iterator[list[AgentProcess]]:
    agents = [AgentProcess(home, f"p{i}", gateway, **environment) for i in range(2)]
    try:
        for agent in agents:
            agent.ready(150)
        yield agents  # the list itself: a test may put an agent's successor into it
    finally:
        for agent in agents:
            agent.stop()


@pytest.fixture(autouse=True)
def behaves(broken: Proxy) -> Iterator[None]:
    yield
    broken.set()


async def launch(machines: Sequence[AgentProcess], job: str, *, s3_every: int) -> None:
    """Start two ranks on each of two machines, each the other's peer."""
    for machine in machines:
        machine.script(job, SLOW_TRAIN)
    async with machines[0].client as client:
        store = await client.open_rendezvous(
            OpenRendezvous(job=job, epoch=1, incarnation=machines[0].incarnation, world_size=4)
        )

    def order(i: int) -> Start:
        return machines[i].start(
            job,
            1,
            args=("100000",),
            ranks=(2 * i, 2 * i + 1),
            world_size=4,
            rendezvous=store,
            restore=RestoreOrder(),
            peer=machines[1 - i].data_address,
            s3_every_steps=s3_every,
        )

    async def start(i: int) -> None:
        async with machines[i].client as client:
            await client.start(order(i))

    await asyncio.gather(*(start(i) for i in range(2)))


async def on(machine: AgentProcess, job: str) -> JobOnMachine:
    async with machine.client as client:
        (found,) = [found for found in (await client.state()).jobs if found.job == job]
        return found


async def reach(machine: AgentProcess, job: str, step: int) -> int:
    """Wait until the job has done and copied ``step``."""

    async def there() -> bool:
        now = await on(machine, job)
        return now.replicated_step >= step and all(rank.step >= step for rank in now.ranks)

    await eventually(there, 120)
    return min(rank.step for rank in (await on(machine, job)).ranks)


async def hold(machines: Sequence[AgentProcess], job: str, step: int) -> None:
    """Have all ranks wait at the boundary after ``step``."""
    for machine in machines:
        async with machine.client as client:
            await client.hold(Hold(job=job, epoch=1, incarnation=machine.incarnation, at_step=step))


async def end(machines: Sequence[AgentProcess], job: str, *, forget: bool = True) -> None:
    for machine in machines:
        async with machine.client as client:
            await client.fence(fence := Fence(job=job, epoch=1, incarnation=machine.incarnation))
            if forget:
                await client.forget(fence)


def uploaded(gateway: FakeGateway, job: str) -> list[RemoteCheckpoint]:
    return [found for report in events(gateway, job) for found in report.checkpoints]


def files(machine: AgentProcess, job: str) -> dict[str, list[str]]:
    """Shard files in the machine's shared memory: in the slots, and those in transfer with their successors."""
    own, peer = machine.shm / "own" / job, machine.shm / "peer" / job
    return {
        "slots": [path.name for folder in (own, peer) for path in folder.glob("*.shard")],
        "reserved": [path.name for folder in (own, peer) for path in folder.glob("*.reserved")],
        "transfers": [path.name for path in (machine.shm / "transfers").glob("*")],
    }


async def all_shards(machines: Sequence[AgentProcess], job: str) -> list[Shard]:
    found: list[Shard] = []
    for machine in machines:
        async with machine.client as client:
            found += [shard for shard in (await client.state()).shards if shard.job == job]
    return found


async def persist(
    machines: Sequence[AgentProcess], job: str, *, killed: AgentProcess | None = None
) -> triggered_save.TriggeredSave:
    """Have the newest complete step saved, as a playbook does after a fence; one may be ``killed`` by what it sends."""
    save = triggered_save.choose(await all_shards(machines, job), [], 4)
    assert save is not None
    for machine in machines:
        if ranks := save.uploads.get(machine.machine):
            order = Persist(
                job=job,
                epoch=1,
                incarnation=machine.incarnation,
                step=save.step,
                shard_epoch=save.epoch,
                world_size=4,
                ranks=ranks,
            )
            away = (UnavailableError,) if machine is killed else ()
            async with machine.client as client:
                # It may be dead before it answers, or before the second order.
                with contextlib.suppress(*away):
                    await client.persist(order)
                    await client.persist(order)  # safe to repeat
    return save


AWAY: tuple[dict[str, Any], ...] = (
    {"refuse": True},
    {"busy": True},
    {"stall": True},
    {"cut": re.compile(rb"PUT "), "cut_at": 0},
)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
async def test_the_store_is_away_for_long(
    pair: list[AgentProcess], gateway: FakeGateway, broken: Proxy, direct: S3Store
) -> None:
    """Training goes on, memory is bounded all the time, and checkpoints come again when the store does."""
    await launch(pair, "away", s3_every=10)
    until(lambda: uploaded(gateway, "away"), 120)
    pids = [rank.pid for rank in (await on(pair[0], "away")).ranks]
    for fault in AWAY:
        hits = broken.hits
        broken.set(**fault)
        before = await reach(pair[0], "away", 1)
        for more in range(20, 121, 20):
            await reach(pair[0], "away", before + more)
            for machine in pair:
                held = files(machine, "away")
                assert len(held["slots"]) <= 8, (
                    held
                )  # two ranks of its own and two of the other, two slots each
                for what in ("own-", "digest-"):  # of uploads and of comparisons: one per rank
                    assert sum(name.startswith(what) for name in held["transfers"]) <= 2, held
                assert all(name.startswith(("own-", "digest-", "proof-")) for name in held["transfers"]), held
                assert len(held["reserved"]) <= 2, held
        until(lambda: broken.hits > hits, 120)  # noqa: B023  (the loan of the fault before may last)
        broken.set()
        newest = max(each.step for each in uploaded(gateway, "away"))
        until(lambda: max(each.step for each in uploaded(gateway, "away")) > newest + 100, 300)  # noqa: B023
    assert [rank.pid for rank in (await on(pair[0], "away")).ranks] == pids
    listed = manifests.list_remote(direct, "away")
    assert {each.key for each in uploaded(gateway, "away")} == {each.key for each in listed}
    await end(pair, "away")

    async def given_back() -> bool:
        return all(not files(machine, "away")["transfers"] for machine in pair)

    await eventually(given_back, 60)


async def test_ranks_die_and_the_newest_step_is_saved(
    pair: list[AgentProcess], gateway: FakeGateway, direct: S3Store
) -> None:
    """No checkpoint was due; the step in memory is in S3 soon after, also when the job is forgotten at once."""
    await launch(pair, "triggered", s3_every=0)
    await reach(pair[0], "triggered", 10)
    os.kill((await on(pair[0], "triggered")).ranks[0].pid, signal.SIGKILL)
    await end(pair, "triggered", forget=False)
    save = await persist(pair, "triggered")
    assert save.uploads == {"p0": (0, 1), "p1": (2, 3)}
    await end(pair, "triggered")
    until(lambda: uploaded(gateway, "triggered"), 60)
    newest = manifests.latest(direct, "triggered")
    assert newest is not None
    assert (newest.step, newest.epoch, newest.world_size) == (save.step, 1, 4)


async def test_an_agent_killed_while_uploading_and_its_machine_lost(
    *,
    home: Path,
    pair: list[AgentProcess],
    gateway: FakeGateway,
    environment: dict[str, str],
    broken: Proxy,
    direct: S3Store,
) -> None:
    """Its unfinished transfer is no checkpoint; its peer has all shards and the metadata, and saves them alone."""
    await launch(pair, "lost", s3_every=0)
    await hold(pair, "lost", await reach(pair[0], "lost", 10) + 20)

    async def copied() -> bool:
        alone = triggered_save.choose(await all_shards(pair[1:], "lost"), [], 4)
        return alone is not None and alone.step >= 10

    # A save whose copy is late counts without it, on a busy host, and the next ones may overwrite what the peer
    # shares with it: what is held is copied in the end.
    await eventually(copied, 120)
    await end(pair, "lost", forget=False)
    broken.set(
        cut=re.compile(rb"PUT .*/__0_0\.distcp"),
        on_cut=lambda: pair[0].process.send_signal(signal.SIGKILL),
    )
    first = await persist(pair, "lost", killed=pair[0])
    until(lambda: pair[0].process.poll() is not None, 60)
    assert broken.hits >= 1
    broken.set()
    assert manifests.list_remote(direct, "lost") == []
    shutil.rmtree(pair[0].shm)

    second = await persist(pair[1:], "lost")
    assert second.uploads == {"p1": (0, 1, 2, 3)}
    assert 10 <= second.step <= first.step
    until(lambda: uploaded(gateway, "lost"), 60)
    newest = manifests.latest(direct, "lost")
    assert newest is not None
    assert newest.step == second.step

    pair[0] = AgentProcess(home, "p0", gateway, **environment).ready(150)
    assert not (pair[0].shm / "transfers").exists()
    await end(pair[1:], "lost")
