"""Agents killed, their shared memory gone: a job goes on from the shards on its machines' disks."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from holdfast.models.agent import OpenRendezvous, RankState
from holdfast.models.checkpoint import RestoreOrder, RestorePlan, Shard, Tier
from holdfast.policies.restore import restore_plan
from holdfast.storage.checkpoints.save import buffers
from tests.agent.gateway import FakeGateway, eventually, until
from tests.agent.site import AgentProcess
from tests.agent.test_training import TRAIN

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

STEPS, EVERY = 25, 10
WAITS = f"""
    from pathlib import Path
    import os, time
    copies = Path(os.environ["HOLDFAST_MACHINE_DIR"], "ckpt", "disk", "toy")
    while sys.argv[1] == "wait" and len(list(copies.glob("*.shard"))) < min(2, (step - 2) // {EVERY}):
        time.sleep(0.01)
"""
"""A step may be done while the disk still has to take an earlier one: what it has not taken then is left out."""
SCRIPT = (
    TRAIN.replace("int(sys.argv[1])", str(STEPS)).replace(
        "    optimizer.step()\n", WAITS + "    optimizer.step()\n"
    )
    + """
while sys.argv[1] == "wait":
    __import__("time").sleep(0.1)
"""
)


@pytest.fixture
def pair(home: Path, gateway: FakeGateway) -> Iterator[list[AgentProcess]]:
    """Two machines whose job has done all its steps, the newest of which lie in memory only."""
    agents = [AgentProcess(home, f"d{i}", gateway) for i in range(2)]
    try:
        for agent in agents:
            agent.ready(150)
        yield agents  # the list itself: the test puts the agents' successors into it
    finally:
        for agent in agents:
            agent.stop()
            shutil.rmtree(agent.folder)
            shutil.rmtree(agent.shm, ignore_errors=True)


async def launch(
    machines: Sequence[AgentProcess], epoch: int, plan: RestorePlan, *, wait: bool = False
) -> None:
    """Start one rank on each machine from what the plan names."""
    address_of = {machine.machine: machine.data_address for machine in machines}
    sources = tuple(each.model_copy(update={"address": address_of[each.machine]}) for each in plan.sources)
    async with machines[0].client as client:
        store = await client.open_rendezvous(
            OpenRendezvous(job="toy", epoch=epoch, incarnation=machines[0].incarnation, world_size=2)
        )

    async def start(rank: int) -> list[RankState]:
        machine = machines[rank]
        machine.script("toy", SCRIPT)
        order = machine.start(
            "toy",
            epoch,
            args=("wait" if wait else "end",),
            ranks=(rank,),
            rendezvous=store,
            restore=RestoreOrder(step=plan.step, epoch=plan.epoch, tier=plan.tier, sources=sources),
            disk_every_steps=EVERY,
        )
        async with machine.client as client:
            return await client.start(order)

    for each in await asyncio.gather(*map(start, range(2)), return_exceptions=True):
        if isinstance(each, BaseException):
            raise each


def sums(machines: Sequence[AgentProcess], epoch: int) -> list[str]:
    """The sum of each rank's weights, from those that are done."""
    logs = [machine.log("toy", rank, epoch) for rank, machine in enumerate(machines)]
    return [line for log in logs for line in log.splitlines() if line.startswith("sum")]


async def shards(machines: Sequence[AgentProcess]) -> list[Shard]:
    """Everything that the machines hold."""
    found: list[Shard] = []
    for machine in machines:
        async with machine.client as client:
            found += (await client.state()).shards
    return found


async def planned(machines: Sequence[AgentProcess], refused: Sequence[str] = ()) -> RestorePlan:
    """The restore plan for these shards, with ranks in the order of ``machines``."""
    places = {rank: machine.machine for rank, machine in enumerate(machines)}
    return restore_plan.choose(await shards(machines), [], 2, places, refused=refused)


def lose_memory(home: Path, machines: list[AgentProcess], gateway: FakeGateway) -> None:
    """Kill all agents at once with no word, empty their shared memory, and start them again."""
    for machine in machines:
        machine.stop(signal.SIGKILL)
        shutil.rmtree(machine.shm)
    machines[:] = [AgentProcess(home, machine.machine, gateway) for machine in machines]
    for machine in machines:
        machine.ready(150)


@pytest.mark.thorough
async def test_a_job_goes_on_from_the_disks(
    home: Path, pair: list[AgentProcess], gateway: FakeGateway
) -> None:
    """First in place; then each rank on the other's machine, and past a flipped byte to the older copy."""
    await launch(pair, 1, RestorePlan(step=0, tier=None, reasons=("new",)), wait=True)
    until(lambda: len(sums(pair, 1)) == 2, 120)
    (expected,) = set(sums(pair, 1))

    async def copied() -> bool:
        held = {(shard.rank, shard.step, shard.tier) for shard in await shards(pair)}
        return {(rank, step, Tier.DISK) for rank in range(2) for step in (10, 20)} <= held

    await eventually(copied, 60)
    lose_memory(home, pair, gateway)
    assert {(each.step, each.tier) for each in await shards(pair)} == {(10, Tier.DISK), (20, Tier.DISK)}
    plan = await planned(pair)
    assert plan.step == 20
    assert {each.tier for each in plan.sources} == {Tier.DISK}
    assert not any("in memory for all" in reason for reason in plan.reasons), plan.reasons
    await launch(pair, 2, plan)
    until(lambda: sums(pair, 2) == [expected] * 2, 120)
    assert "start 20" in pair[1].log("toy", 1, 2)

    lose_memory(home, pair, gateway)
    (damaged,) = [
        path
        for path, header in buffers.inventory(pair[0].folder / "ckpt" / "disk" / "toy")
        if header.step == 20
    ]
    flip(damaged)
    moved = [pair[1], pair[0]]
    with pytest.raises(CheckpointError, match=r"job 'toy' step 20 rank 0 \(disk of d0\)") as refused:
        await launch(moved, 3, await planned(moved))
    plan = await planned(moved, [str(refused.value)])
    assert (plan.step, {each.tier for each in plan.sources}) == (10, {Tier.DISK})
    await launch(moved, 4, plan)
    until(lambda: sums(moved, 4) == [expected] * 2, 120)
    assert "start 10" in moved[0].log("toy", 0, 4)


def flip(path: Path) -> None:
    """Change one bit of the last byte."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
