"""Where a rank's state is taken from: the cheapest source that is whole; damage is refused by name."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.checkpoints import shard_client
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.shard_port import ShardPort
from holdfast.agent.checkpoints.transfer_process import TransferProcess
from holdfast.agent.ranks.jobs import RunningJobs
from holdfast.agent.ranks.restored import Restored
from holdfast.agent.ranks.staging import Staging, _to_its_end
from holdfast.errors import CheckpointError, StaleError
from holdfast.models.agent import Fence, Rendezvous, Start
from holdfast.models.checkpoint import RestoreOrder, ShardSource, Tier
from holdfast.models.start_from import StartFrom
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.code import versions
from tests.agent.shards import write_shard

SECRET = "s"
STORE = {"endpoint": "http://nowhere"}


def store_at(url: str) -> dict[str, str]:
    """How the store at a URL is reached; the site's own without one."""
    return STORE | {"url": url} if url else STORE


class Machine:
    """Shared memory and its data port."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.memory = Memory(name, root)
        self.port = ShardPort(self.memory, SECRET, "127.0.0.1")

    def source(self, tier: Tier) -> ShardSource:
        return ShardSource(rank=0, machine=self.name, tier=tier, address=self.port.address)

    def steps(self) -> set[int]:
        return {shard.step for shard in self.memory.shards()}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """The rank's own, and two others."""
    made = [Machine(f"m{number}", tmp_path / f"m{number}") for number in range(3)]
    yield made
    for machine in made:
        machine.port.close()


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def restored(home: Machine, tmp_path: Path, *sources: ShardSource, key: str = "") -> Restored:
    order = RestoreOrder(
        step=4, epoch=1, tier=Tier.MEMORY, sources=sources[:1], fallbacks=sources[1:], key=key
    )
    return restored_by(order, home, tmp_path)


def restored_by(order: RestoreOrder, home: Machine, tmp_path: Path) -> Restored:
    return asyncio.run(supply_of(home, tmp_path).restored(start_by(order), 0))


def start_by(order: RestoreOrder) -> Start:
    return Start(
        job="toy",
        epoch=2,
        incarnation="i",
        script="train.py",
        code_version="v",
        ranks=(0,),
        world_size=1,
        rendezvous=Rendezvous(host="h", port=1),
        restore=order,
    )


def supply_of(home: Machine, tmp_path: Path) -> Staging:
    carrier: Any = None
    assert isinstance(carrier, TransferProcess | None)
    return Staging(carrier, home.memory, tmp_path / "folder", SECRET, store_at)


def test_the_shard_that_is_here_is_taken(machines: list[Machine], tmp_path: Path) -> None:
    """No other machine is asked."""
    home, other, _ = machines
    path = write_shard(home.memory.own("toy"), 0, 4)
    other.port.close()
    found = restored(home, tmp_path, other.source(Tier.PEER))
    assert (found.path, found.passed_over) == (str(path), ())


def test_of_two_copies_here_the_damaged_one_is_named(machines: list[Machine], tmp_path: Path) -> None:
    """The one on the disk is whole, and no other machine is asked."""
    home = machines[0]
    flip(write_shard(home.memory.own("toy"), 0, 4))
    path = write_shard(home.memory.disk("toy"), 0, 4)
    found = restored(home, tmp_path)
    assert found.path == str(path)
    assert [each.partition(":")[0] for each in found.passed_over] == [
        "job 'toy' step 4 rank 0 (memory of m0)"
    ]


def test_one_flipped_byte_in_own_memory_is_refused_and_the_peer_has_it(
    machines: list[Machine], tmp_path: Path
) -> None:
    """The damaged shard is discarded; the copy comes here and is whole."""
    home, other, _ = machines
    flip(write_shard(home.memory.own("toy"), 0, 4))
    write_shard(other.memory.peer("toy"), 0, 4)
    found = restored(home, tmp_path, home.source(Tier.MEMORY), other.source(Tier.PEER))
    assert buffers.verify(Path(found.path)).step == 4
    assert Path(found.path).parent == home.memory.own("toy")
    [refused] = found.passed_over
    assert refused.startswith("job 'toy' step 4 rank 0 (memory of m0): shard of rank 0 at step 4")
    assert "bytes changed after it was saved" in refused


def test_one_flipped_byte_on_the_peer_takes_the_next_source(machines: list[Machine], tmp_path: Path) -> None:
    """The peer itself finds its copy damaged and discards it, so that no plan names it again."""
    home, other, third = machines
    flip(write_shard(other.memory.peer("toy"), 0, 4))
    write_shard(third.memory.own("toy"), 0, 4)
    found = restored(home, tmp_path, other.source(Tier.PEER), third.source(Tier.MEMORY))
    assert buffers.verify(Path(found.path)).step == 4
    assert [each.partition(":")[0] for each in found.passed_over] == ["job 'toy' step 4 rank 0 (peer of m1)"]
    assert other.steps() == set()
    assert third.steps() == {4}


def test_when_machines_have_nothing_whole_the_rank_reads_s3_alone(
    machines: list[Machine], tmp_path: Path
) -> None:
    """If the whole checkpoint lies there at that step."""
    home, other, _ = machines
    flip(write_shard(other.memory.peer("toy"), 0, 4))
    s3 = ShardSource(rank=0, machine="", tier=Tier.S3)
    found = restored(home, tmp_path, other.source(Tier.PEER), s3, key="toy/checkpoints/step-4")
    assert (found.tier, found.key, found.alone, found.store) == ("s3", "toy/checkpoints/step-4", True, STORE)


@pytest.mark.parametrize(
    ("source", "store"),
    [
        ({"path": "acme://theirs/run/step-7"}, STORE | {"url": "acme://theirs"}),
        ({"path": "/lustre/step-7"}, STORE),
        ({"job": "llama", "step": 7, "epoch": 1}, STORE),
    ],
)
def test_a_rank_is_given_the_store_of_its_source(
    machines: list[Machine], tmp_path: Path, source: dict[str, Any], store: dict[str, str]
) -> None:
    """The one that a URL names, or the site's own."""
    order = RestoreOrder(step=0, start_from=StartFrom.model_validate(source))
    assert restored_by(order, machines[0], tmp_path).store == store


def test_when_every_source_is_refused_each_is_named(machines: list[Machine], tmp_path: Path) -> None:
    """Job, step, rank, tier and machine of each; a short file as well as a flipped byte."""
    home, other, third = machines
    flip(write_shard(home.memory.own("toy"), 0, 4))
    flip(write_shard(other.memory.peer("toy"), 0, 4))
    short = write_shard(third.memory.peer("toy"), 0, 4)
    short.write_bytes(short.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as refused:
        restored(home, tmp_path, other.source(Tier.PEER), third.source(Tier.PEER))
    for named in ("memory of m0", "peer of m1", "peer of m2"):
        assert f"job 'toy' step 4 rank 0 ({named}" in str(refused.value)
    assert [machine.steps() for machine in machines] == [set(), set(), set()]


def test_a_shard_of_another_epoch_is_not_taken_for_it(machines: list[Machine], tmp_path: Path) -> None:
    """The same step was computed twice."""
    home, _, _ = machines
    write_shard(home.memory.own("toy"), 0, 4, epoch=3)
    with pytest.raises(CheckpointError, match="no shard of job 'toy' rank 0 at step 4"):
        restored(home, tmp_path)


class Bucket:
    """A carrier that has the archive, as S3 would."""

    def __init__(self, archive: bytes) -> None:
        self.archive = archive
        self.asked = 0

    async def call(self, operation: str, within_s: float, *, job: str, version: str, folder: str) -> None:
        assert operation == "checkout"
        self.asked += 1
        versions.place(self.archive, version, Path(folder))


@pytest.mark.parametrize("harm", ["emptied", "same size", "gone", "all of it"])
def test_a_broken_checkout_does_not_run(machines: list[Machine], tmp_path: Path, harm: str) -> None:
    """A power cut left it so: the agent that starts then reads every byte, and makes it again from its copies."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('A')")
    version, archive = versions.pack(tmp_path / "code")
    bucket: Any = Bucket(archive)

    def agent() -> Staging:
        return Staging(bucket, machines[0].memory, tmp_path / "folder", SECRET, store_at)

    script = asyncio.run(agent().code("toy", version)) / "train.py"
    assert bucket.asked == 1
    before = script.stat()
    match harm:
        case "emptied" | "all of it":
            script.write_bytes(b"")
        case "same size":
            script.write_text("print('B')")
            os.utime(script, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "gone":
            script.unlink()
    if harm == "all of it":
        versions.packed(script.parent).write_bytes(b"")
    asyncio.run(agent().code("toy", version))
    assert script.read_text() == "print('A')"
    assert bucket.asked == (2 if harm == "all of it" else 1)


def test_a_checkout_that_changes_under_an_agent_is_seen(machines: list[Machine], tmp_path: Path) -> None:
    """At the next start, by its files' sizes and times; what a script writes beside them is its own."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('A')")
    version, archive = versions.pack(tmp_path / "code")
    bucket: Any = Bucket(archive)
    supply = Staging(bucket, machines[0].memory, tmp_path / "folder", SECRET, store_at)
    folder = asyncio.run(supply.code("toy", version))
    (folder / "output.txt").write_text("of a run")
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "look", lambda version, dest: read.append(version))
        asyncio.run(supply.code("toy", version))
    assert read == []
    (folder / "train.py").write_text("")
    asyncio.run(supply.code("toy", version))
    assert (folder / "train.py").read_text() == "print('A')"


@pytest.mark.parametrize("order_to", ["fence", "forget"])
async def test_a_fence_does_not_wait_for_a_state_that_is_on_its_way(tmp_path: Path, order_to: str) -> None:
    """It may be so for minutes; a machine that does not answer the order to stop in seconds is taken for silent."""
    fetching, ended = asyncio.Event(), list[int]()
    order = RestoreOrder(step=4, epoch=1, tier=Tier.MEMORY)
    start = start_by(order)

    async def code(*_: object) -> Path:
        return tmp_path

    async def far_away(*_: object) -> Restored:
        fetching.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def launch(*_: object) -> None:
        """Ranks that wait for their state."""

    async def stop(**_: object) -> list[int]:
        ended.append(start.epoch)
        return []

    run: Any = SimpleNamespace(start=start, launch=launch, stop=stop, hand_over=lambda *_: None, lost={})
    some: Any = SimpleNamespace(observe=lambda _: None)
    memory: Any = SimpleNamespace(
        place=lambda *_: None, resume_after=lambda *_: None, accept_from={}, forget=lambda _: None
    )
    supply: Any = SimpleNamespace(code=code, restored=far_away)
    metrics: Any = SimpleNamespace(fence_seconds=some, start_seconds=some)
    jobs = RunningJobs(
        forks=some,
        memory=memory,
        supply=supply,
        metrics=metrics,
        host="",
        make_run=lambda _: run,
        events=lambda _: some,
        on_exit=lambda *_: None,
        on_lost=lambda *_: None,
    )
    starting = asyncio.create_task(jobs.start(start))
    await asyncio.wait_for(fetching.wait(), 60)
    late = asyncio.create_task(jobs.fence(Fence(job="toy", epoch=1, incarnation="i")))
    await asyncio.sleep(0.01)
    assert not starting.done(), "a fence of the epoch before ends no later one"
    if order_to == "fence":
        assert await asyncio.wait_for(jobs.fence(Fence(job="toy", epoch=2, incarnation="i")), 60) == []
    else:
        await asyncio.wait_for(jobs.forget("toy", 2), 60)
    with pytest.raises(StaleError, match="fenced off"):
        await starting
    assert ended == [2]
    assert await late == []


async def test_a_transfer_that_is_given_up_ends_before_another_may_begin() -> None:
    """It writes a slot, which the next one would write as well."""
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def transfer() -> None:
        began.set()
        assert go.wait(60)
        ended.set()

    given_up = asyncio.create_task(_to_its_end(transfer))
    assert await asyncio.to_thread(began.wait, 60)
    given_up.cancel()
    await asyncio.sleep(0.01)
    assert not given_up.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert ended.is_set()


async def test_a_rank_that_reads_s3_waits_for_a_transfer_that_was_given_up(
    machines: list[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would save into the slot that the transfer still writes; what came is beyond the step that it resumes from."""
    home, other, _ = machines
    began, go = threading.Event(), threading.Event()

    def pull(*_: object, **__: object) -> None:
        began.set()
        assert go.wait(60)
        write_shard(home.memory.own("toy"), 0, 9)

    monkeypatch.setattr(shard_client, "pull", pull)
    supply = supply_of(home, tmp_path)
    far = RestoreOrder(step=9, epoch=1, tier=Tier.MEMORY, sources=(other.source(Tier.PEER),))
    given_up = asyncio.create_task(supply.restored(start_by(far), 0))
    assert await asyncio.to_thread(began.wait, 60)
    given_up.cancel()
    older = RestoreOrder(step=4, epoch=1, tier=Tier.S3, key="toy/4")
    later = asyncio.create_task(supply.restored(start_by(older), 0))
    await asyncio.sleep(0.01)
    assert not later.done()
    go.set()
    assert (await later).tier == Tier.S3.value
    assert home.steps() == set()
    with pytest.raises(asyncio.CancelledError):
        await given_up
