"""Two real agents with two torch ranks each: a job's life from its first step to a restore on a new machine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.agent.wire import ENV_PATIENCE
from holdfast.models.agent import Fence, JobOnMachine, OpenRendezvous, Start
from holdfast.models.alert import AlertKind
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, ShardSource, Tier
from holdfast.storage.objects.s3 import S3Store
from tests.agent.gateway import FakeGateway, events, eventually, until
from tests.agent.site import AgentProcess
from tests.storage import servers

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.thorough]

TRAIN = """
import sys, torch, torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}
session = holdfast.Session()
start = session.restore(state)
print("start", start, "threads", torch.get_num_threads(), flush=True)
for step in range(start + 1, int(sys.argv[1]) + 1):
    generator = torch.Generator().manual_seed(step * 100 + dist.get_rank())
    loss = model(torch.randn(4, 8, generator=generator)).square().mean()
    optimizer.zero_grad(); loss.backward()
    # Not DDP: it lays its buckets out again after the first step of a process, and gloo's sums of four ranks
    # depend on the layout, so that a DDP run with a restart differs in the last bits without us, too.
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
    session.step(step, loss=loss.item())
    session.checkpoint(state)
print("sum", model.weight.double().sum().item().hex(), flush=True)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with servers.moto() as endpoint:
        S3Store(endpoint=endpoint, bucket="agents", access_key="a", secret_key="k").ensure_bucket()
        yield servers.s3_settings(endpoint, "agents", "k")


@pytest.fixture(scope="module")
def machines(home: Path, gateway: FakeGateway, s3: dict[str, str]) -> Iterator[list[AgentProcess]]:
    """Two machines for the job and one standby."""
    agents = [AgentProcess(home, f"t{i}", gateway, **s3) for i in range(3)]
    try:
        yield [agent.ready(150) for agent in agents]
    finally:
        for agent in agents:
            agent.stop()


async def launch(
    machines: Sequence[AgentProcess],
    job: str,
    epoch: int,
    restore: RestoreOrder,
    *,
    steps: int,
    s3_every: int = 0,
) -> float:
    """Start two ranks on each of two machines; returns the seconds that the start commands took."""
    for machine in machines:
        machine.script(job, TRAIN)
    async with machines[0].client as client:
        store = await client.open_rendezvous(
            OpenRendezvous(job=job, epoch=epoch, incarnation=machines[0].incarnation, world_size=4)
        )

    def order(i: int) -> Start:
        return machines[i].start(
            job,
            epoch,
            args=(str(steps),),
            ranks=(2 * i, 2 * i + 1),
            world_size=4,
            rendezvous=store,
            restore=restore,
            peer=machines[1 - i].data_address,
            s3_every_steps=s3_every,
            # Steps take a millisecond: without it those that are due in S3 may be among the saves that are left out.
            env={ENV_PATIENCE: "60"} if s3_every else {},
        )

    async def start(i: int) -> float:
        async with machines[i].client as client:
            begun = time.monotonic()
            await client.start(order(i))
            return time.monotonic() - begun

    return max(await asyncio.gather(*(start(i) for i in range(2))))


async def fence(machines: Sequence[AgentProcess], job: str, epoch: int) -> None:
    for machine in machines:
        async with machine.client as client:
            await client.fence(Fence(job=job, epoch=epoch, incarnation=machine.incarnation))


async def shards(machine: AgentProcess, job: str) -> set[tuple[int, int, Tier]]:
    async with machine.client as client:
        return {(s.rank, s.step, s.tier) for s in (await client.state()).shards if s.job == job}


async def on(machine: AgentProcess, job: str) -> JobOnMachine:
    async with machine.client as client:
        (found,) = [found for found in (await client.state()).jobs if found.job == job]
        return found


def sums(machines: Sequence[AgentProcess], job: str, epoch: int) -> set[str]:
    logs = [
        machine.log(job, rank, epoch) for i, machine in enumerate(machines) for rank in (2 * i, 2 * i + 1)
    ]
    return {line for log in logs for line in log.splitlines() if line.startswith("sum")}


def from_memory(step: int, addresses: dict[int, str]) -> RestoreOrder:
    sources = tuple(
        ShardSource(rank=rank, machine="", tier=Tier.MEMORY, address=addresses.get(rank, ""))
        for rank in range(4)
    )
    return RestoreOrder(step=step, tier=Tier.MEMORY, sources=sources)


async def test_a_lost_machine_is_replaced_from_its_peer(
    machines: list[AgentProcess], gateway: FakeGateway
) -> None:
    """Every step lies on the peer; a standby fetches the shards and the end is bit for bit the same."""
    pair, standby = machines[:2], machines[2]
    await launch(pair, "whole", 1, RestoreOrder(), steps=60)
    until(lambda: gateway.done("whole") == {0, 1, 2, 3}, 120)
    expected = sums(pair, "whole", 1)
    assert len(expected) == 1

    await launch(pair, "hurt", 1, RestoreOrder(), steps=100_000)

    async def far() -> bool:
        return (await on(pair[0], "hurt")).replicated_step > 20

    await eventually(far, 60)
    victim = (await on(pair[0], "hurt")).ranks[0].pid
    os.kill(victim, signal.SIGKILL)
    alerts = until(lambda: gateway.alerts(AlertKind.RANK_EXIT, "hurt"))
    assert [alert.evidence["signal"] for alert in alerts if alert.rank == 0] == ["SIGKILL"]
    until(lambda: {alert.rank for alert in gateway.alerts(AlertKind.RANK_EXIT, "hurt")} == {0, 1, 2, 3})
    others = [alert for alert in gateway.alerts(AlertKind.RANK_EXIT, "hurt") if alert.rank]
    assert all(alert.evidence["cascade"] for alert in others), others
    await fence(pair, "hurt", 1)

    # Machine t0 is out: what its ranks had lies on t1.
    left = await shards(pair[1], "hurt")
    common = min(max(step for r, step, _ in left if r == rank) for rank in range(4))
    assert {rank for rank, step, tier in left if step == common and tier is Tier.PEER} == {0, 1}
    new = [standby, pair[1]]
    # Some steps beyond what was lost, then compare with a run that nothing happened to.
    order = from_memory(common, dict.fromkeys((0, 1), pair[1].data_address))
    await launch(new, "hurt", 2, order, steps=common + 10)
    until(lambda: gateway.done("hurt") == {0, 1, 2, 3}, 120)
    assert f"start {common} threads 1" in standby.log("hurt", 1, 2)
    await launch(pair, "again", 1, RestoreOrder(), steps=common + 10)
    until(lambda: gateway.done("again") == {0, 1, 2, 3}, 120)
    assert sums(new, "hurt", 2) == sums(pair, "again", 1)
    # It saves what its ranks compute now; which of the last steps were left out depends on how busy the host is.
    saved = await shards(standby, "hurt")
    assert {rank for rank, _, tier in saved if tier is Tier.MEMORY} == {0, 1}
    assert {step for _, step, _ in saved} <= set(range(common + 1, common + 11))


async def test_checkpoints_go_to_the_store_and_come_back(
    machines: list[AgentProcess], gateway: FakeGateway
) -> None:
    """Every k steps, manifest last, reported to the gateway; ranks read one from there and go on."""
    pair = machines[:2]
    await launch(pair, "stored", 1, RestoreOrder(), steps=25, s3_every=10)
    until(lambda: gateway.done("stored") == {0, 1, 2, 3}, 120)

    def uploaded() -> list[RemoteCheckpoint]:
        return [found for report in events(gateway, "stored") for found in report.checkpoints]

    # These steps take a millisecond: the second is left out where the first is still on its way.
    until(uploaded, 120)
    remote = max(uploaded(), key=lambda found: found.step)
    assert remote.step in {10, 20}
    assert (remote.epoch, remote.world_size) == (1, 4)
    await fence(pair, "stored", 1)
    order = RestoreOrder(step=remote.step, tier=Tier.S3, key=remote.key)
    await launch(pair, "stored", 2, order, steps=25)
    until(lambda: len(sums(pair, "stored", 2)) == 1 and "sum" in pair[1].log("stored", 3, 2), 120)
    assert f"start {remote.step}" in pair[0].log("stored", 0, 2)
    assert sums(pair, "stored", 2) == sums(pair, "stored", 1)


async def test_stacks_say_which_step_their_ranks_had_completed(machines: list[AgentProcess]) -> None:
    """Not where it changes while they are taken."""
    pair = machines[:2]
    await launch(pair, "dumped", 1, RestoreOrder(), steps=100_000)

    async def far() -> bool:
        return (await on(pair[0], "dumped")).ranks[0].step > 20

    await eventually(far, 60)
    ranks = {rank.rank: rank.pid for machine in pair for rank in (await on(machine, "dumped")).ranks}
    os.kill(ranks[2], signal.SIGSTOP)

    async def steps(machine: AgentProcess) -> dict[int | None, int | None]:
        async with machine.client as client:
            dumps = await client.stacks("dumped", 1)
        return {each.rank: each.step for each in dumps if each.thread == "MainThread" and not each.child}

    async def stands() -> bool:
        found = await steps(pair[0])
        return found == {rank.rank: rank.step for rank in (await on(pair[0], "dumped")).ranks}

    await eventually(stands, 60)
    (others,) = set((await steps(pair[0])).values())
    behind = (await steps(pair[1]))[2]
    assert others is not None
    assert behind is not None
    assert abs(others - behind) <= 1
    await fence(pair, "dumped", 1)
