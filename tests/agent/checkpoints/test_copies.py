"""Copies of the state that two machines hold, counted in the blocks of their files: at rest, and while S3 is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.agent import Fence, OpenRendezvous
from holdfast.models.checkpoint import Copies, FirstTier
from holdfast.storage.checkpoints.save import buffers
from tests.agent.gateway import FakeGateway, eventually
from tests.agent.site import AgentProcess
from tests.storage import servers
from tests.storage.proxy import Proxy, proxy

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

MIB = 1 << 20
STATE = 6 * MIB
BUCKET = "copies"

TRAIN = """
import sys, time, torch, torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
kind, numbers = sys.argv[1], int(sys.argv[2]) // 4
weight = torch.zeros(numbers)

class Own:
    def state_dict(self):
        return {f"weight{dist.get_rank()}": weight}
    def load_state_dict(self, state):
        weight.copy_(state[f"weight{dist.get_rank()}"])

class Equal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", weight)

# Of all ranks alike, so that each uploads a part; or of each rank's own, so that it uploads everything.
state, session = {"part": Equal() if kind == "equal" else Own()}, holdfast.Session()
step = session.restore(state)
while True:
    step += 1
    time.sleep(0.02)
    dist.all_reduce(torch.zeros(1))  # as any training has it, so that ranks keep step
    weight += 1.0
    session.step(step)
    session.checkpoint(state)
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Proxy]:
    with servers.moto() as endpoint, proxy(endpoint) as made:
        yield made


@pytest.fixture(scope="module")
def pair(
    home: Path, gateway: FakeGateway, store: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[AgentProcess]]:
    folder = tmp_path_factory.mktemp("copies")
    # Comparing replicas holds one more file still, for as long as it reads.
    (folder / "policy.yaml").write_text("detect: {replicas: {every_steps: 0}}\n")
    (folder / "nvme").mkdir()
    environment = {
        **servers.s3_settings(store.endpoint, BUCKET, "not-a-secret"),
        "HOLDFAST_FIRST_TIER_DIR": str(folder / "nvme"),
        "HOLDFAST_POLICY_FILE": str(folder / "policy.yaml"),
    }
    agents = [AgentProcess(home, f"c{i}", gateway, **environment) for i in range(2)]
    try:
        yield [agent.ready(150) for agent in agents]
    finally:
        for agent in agents:
            agent.stop()


class Running:
    """A job of two ranks on each of two machines, each the other's peer."""

    def __init__(self, machines: list[AgentProcess], job: str) -> None:
        self.machines, self.job = machines, job

    async def launch(self, kind: str, **choices: Any) -> None:
        for machine in self.machines:
            machine.script(self.job, TRAIN)
        first = self.machines[0]
        async with first.client as client:
            rendezvous = await client.open_rendezvous(
                OpenRendezvous(job=self.job, epoch=1, incarnation=first.incarnation, world_size=4)
            )
        await asyncio.gather(*(self._start(i, kind, rendezvous, choices) for i in range(2)))

    async def _start(self, i: int, kind: str, rendezvous: Any, choices: dict[str, Any]) -> None:
        order = self.machines[i].start(
            self.job,
            args=(kind, str(STATE)),
            ranks=(2 * i, 2 * i + 1),
            world_size=4,
            rendezvous=rendezvous,
            peer=self.machines[1 - i].data_address,
            **choices,
        )
        async with self.machines[i].client as client:
            await client.start(order)

    async def replicated(self, step: int) -> None:
        """Until all shards of ``step`` lie on the peers."""

        async def there() -> bool:
            return all([(await self._state(machine)).replicated_step >= step for machine in self.machines])

        await eventually(there, 120)

    async def rehearsed(self) -> None:
        """Until every rank is: its shard was lent for that, which is one copy more for a while."""

        async def over() -> bool:
            rehearsals = [(await self._state(machine)).rehearsed for machine in self.machines]
            return all(each is not None and each.step > 0 for each in rehearsals)

        await eventually(over, 120)

    async def _state(self, machine: AgentProcess) -> Any:
        async with machine.client as client:
            (found,) = [run for run in (await client.state()).jobs if run.job == self.job]
            return found

    async def counted(self, root: Path, steps: int) -> list[float]:
        """Copies of a rank's state that lay under ``root``, looked at often over so many steps; sorted."""
        until = (await self._state(self.machines[0])).replicated_step + steps
        found: list[float] = []
        while not found or (await self._state(self.machines[0])).replicated_step < until:
            for _ in range(20):
                found.append(copies(root, self.job))
                await asyncio.sleep(0.002)
        return sorted(found)

    async def end(self) -> None:
        for machine in self.machines:
            async with machine.client as client:
                await client.fence(fence := Fence(job=self.job, epoch=1, incarnation=machine.incarnation))
                await client.forget(fence)


def copies(root: Path, job: str) -> float:
    """Blocks of all distinct files of a job under ``root``, in states of the machine's two ranks."""
    seen: dict[int, int] = {}
    for pattern in (f"own/{job}/*", f"peer/{job}/*", f"transfers/*-{job}-*"):
        for path in root.glob(pattern):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            seen[found.st_ino] = found.st_blocks * 512
    return sum(each for each in seen.values() if each >= MIB) / (2 * STATE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "choice", "rest", "peak"),
    [
        # Two own buffers and two for the peer; an upload takes the whole, or a quarter where four ranks share it.
        ("own", Copies(own=2, peer=2), 4, 5),
        ("equal", Copies(own=2, peer=2), 4, 4.25),
        ("own", Copies(own=2, peer=1), 3, 4),
        # A single buffer is never lent: the whole waits on the disk, a quarter in memory.
        ("own", Copies(own=1, peer=1), 2, 2),
        ("equal", Copies(own=1, peer=1), 2, 2.25),
    ],
    ids=["default", "replicas", "one-copy-on-the-peer", "two-in-all", "two-in-all-replicas"],
)
async def test_copies_at_rest_and_while_the_store_is_slow(
    *,
    pair: list[AgentProcess],
    store: Proxy,
    kind: str,
    choice: Copies,
    rest: float,
    peak: float,
) -> None:
    """Exactly the copies that were chosen at rest; with S3 stalled for long, one lent shard of each rank more."""
    slack = 0.05  # headers, metadata
    store.set()
    running = Running(pair, f"rest-{kind}-{choice.own}-{choice.peer}")
    await running.launch(kind, copies=choice)
    await running.replicated(4)
    await running.rehearsed()
    found = await running.counted(pair[0].shm, 4)
    await running.end()
    assert rest <= found[0] <= found[-1] <= rest + slack

    store.set(stall=True)
    running = Running(pair, f"slow-{kind}-{choice.own}-{choice.peer}")
    hits = store.hits  # before the launch: a rank whose upload hangs asks once, early
    await running.launch(kind, copies=choice, s3_every_steps=2)
    await running.rehearsed()

    async def all_wait_for_the_store() -> bool:
        return store.hits > hits and copies(pair[0].shm, running.job) >= peak

    await eventually(all_wait_for_the_store, 120)
    found = await running.counted(pair[0].shm, 6)
    store.set()
    await running.end()
    assert peak <= found[len(found) // 2] <= peak + slack
    # While a part is being copied its buffer is lent, too.
    assert found[-1] <= peak + slack + (1 if kind == "equal" else 0)


@pytest.mark.thorough
async def test_the_first_tier_on_a_disk_takes_no_memory(pair: list[AgentProcess], store: Proxy) -> None:
    """The same files, in the folder that the agent was given; they go when the job is forgotten."""
    store.set()
    running = Running(pair, "nvme")
    await running.launch("own", copies=Copies(own=2, peer=1), first_tier=FirstTier.DISK)
    await running.replicated(4)
    await running.rehearsed()
    nvme = _nvme(pair[0])
    assert copies(pair[0].shm, "nvme") == 0
    found = await running.counted(nvme, 4)
    assert 3 <= found[0] <= found[-1] <= 3.05
    held = buffers.inventory(nvme / "own" / "nvme")
    assert {header.rank for _, header in held} == {0, 1}
    await running.end()
    assert copies(nvme, "nvme") == 0


async def test_only_every_kth_step_is_saved(pair: list[AgentProcess], store: Proxy) -> None:
    """And an epoch's first, so that a save that cannot work shows at once."""
    store.set()
    running = Running(pair, "seldom")
    await running.launch("own", copies=Copies(own=2, peer=2), memory_every_steps=5)
    seen: set[int] = set()

    async def four() -> bool:
        for _, header in buffers.inventory(pair[0].shm / "own" / "seldom"):
            seen.add(header.step)
        return len(seen) >= 4

    await eventually(four, 120)
    await running.end()
    assert {step % 5 for step in seen if step != 1} == {0}


def _nvme(machine: AgentProcess) -> Path:
    """The machine's part of the folder that its agent was given."""
    environment = Path(f"/proc/{machine.process.pid}/environ").read_bytes().decode().split("\0")
    (folder,) = [
        each.partition("=")[2] for each in environment if each.startswith("HOLDFAST_FIRST_TIER_DIR=")
    ]
    return Path(folder) / machine.shm.parent.name / machine.shm.name
