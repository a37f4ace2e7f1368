"""Which steps are copied to the disk, and what is counted when one is not."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.checkpoints import disk
from holdfast.agent.checkpoints.disk import DiskTier
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.agent.metrics import Metrics
from holdfast.models.checkpoint import Tier
from holdfast.models.setback import Place
from holdfast.storage.checkpoints.save import buffers
from tests.agent.gateway import eventually
from tests.agent.shards import write_shard


class Site:
    """The memory of one machine with its disk, and one run of one rank."""

    def __init__(self, folder: Path, every: int, epoch: int = 1, replay: object = None) -> None:
        self.memory = Memory("m1", folder / "shm", folder / "machine")
        self.metrics = Metrics()
        self.setbacks = Setbacks()
        self.tier = DiskTier(self.memory, 1 << 30, self.metrics, self.setbacks)
        start = SimpleNamespace(job="toy", epoch=epoch, disk_every_steps=every, replay=replay)
        self.run: Any = SimpleNamespace(start=start, name=f"toy-e{epoch}")

    def save(self, step: int, since: int | None = None) -> Path:
        """Save a step as the rank and report it."""
        path = write_shard(self.memory.own("toy"), 0, step)
        self.tier.saved(self.run, 0, step, path, since=step - 1 if since is None else since)
        return path

    def counted(self, outcome: str) -> int:
        return int(self.metrics.disk_copies.labels(outcome)._value.get())

    def steps(self) -> list[int]:
        return [shard.step for shard in self.memory.shards() if shard.tier is Tier.DISK]

    async def rest(self) -> None:
        """Until no copy is under way."""

        async def idle() -> bool:
            return not self.tier._busy

        await eventually(idle)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies wait for it."""
    go, whole = threading.Event(), disk.write

    def write(*args: Any) -> Path:
        assert go.wait(60)
        return whole(*args)

    monkeypatch.setattr(disk, "write", write)
    return go


async def test_every_kth_step_is_copied_once(tmp_path: Path) -> None:
    """Also when it is reported twice; nothing stays lent."""
    site = Site(tmp_path, every=2)
    for step in range(1, 6):
        path = site.save(step)
        site.tier.saved(site.run, 0, step, path, since=step - 1)
        await site.rest()
    assert site.steps() == [2, 4]
    assert (site.counted("ok"), site.counted("skipped"), site.counted("failed")) == (2, 0, 0)
    assert list((site.memory.root / "transfers").iterdir()) == []


async def test_where_multiples_are_not_saved_the_next_save_is_copied(tmp_path: Path) -> None:
    """A save takes a little more than one step: all are of odd steps."""
    site = Site(tmp_path, every=4)
    for step in range(1, 14, 2):
        site.save(step, since=max(0, step - 2))
        await site.rest()
    assert (site.steps(), site.counted("ok")) == ([9, 13], 3)


@pytest.mark.parametrize(("every", "replay"), [(0, None), (1, object())])
async def test_nothing_is_copied_unasked(tmp_path: Path, every: int, replay: object) -> None:
    """The tier is off by default, and a replay leaves no copies."""
    site = Site(tmp_path, every, replay=replay)
    site.save(1)
    await site.rest()
    assert site.steps() == []


async def test_a_slow_disk_holds_nothing_up(tmp_path: Path, held: threading.Event) -> None:
    """One copy at a time: steps that fall due meanwhile are left out and counted, and the bytes are those lent."""
    site = Site(tmp_path, every=1)
    for step in range(1, 6):
        site.save(step)
    assert len(list((site.memory.root / "transfers").iterdir())) == 1
    assert site.counted("skipped") == 4
    held.set()
    await site.rest()
    assert site.steps() == [1]
    ((path, _),) = buffers.inventory(site.memory.disk("toy"))
    assert buffers.verify(path).step == 1
    site.save(6)
    await site.rest()
    assert site.steps() == [1, 6]


async def test_a_full_disk_is_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that is there stays, the loan is given back, and the next due step is copied."""
    site = Site(tmp_path, every=1)
    site.save(1)
    await site.rest()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "_copy", full)
        site.save(2)
        await site.rest()
    assert site.counted("failed") == 1
    (setback,) = site.setbacks.summaries("toy", 1)
    assert (setback.place, setback.count, "No space left" in setback.reason) == (Place.DISK, 1, True)
    assert site.steps() == [1]
    assert list((site.memory.root / "transfers").iterdir()) == []
    site.save(3)
    await site.rest()
    assert site.steps() == [1, 3]
    assert site.setbacks.summaries("toy", 1) == ()


async def test_a_step_that_is_computed_again_is_copied_again(tmp_path: Path) -> None:
    """After a rollback the steps' numbers are those of before."""
    site = Site(tmp_path, every=1)
    for step in (1, 2):
        site.save(step)
        await site.rest()
    site.memory.resume_after("toy", 1)
    again = Site(tmp_path, every=1, epoch=2)
    path = write_shard(again.memory.own("toy"), 0, 2, epoch=2)
    site.tier.saved(again.run, 0, 2, path, since=1)
    await site.rest()
    found = {(shard.step, shard.epoch) for shard in site.memory.shards() if shard.tier is Tier.DISK}
    assert found == {(1, 1), (2, 2)}


async def test_a_job_that_is_forgotten_leaves_no_copy(tmp_path: Path, held: threading.Event) -> None:
    """Also when one was under way: the next job of that name does not find it."""
    site = Site(tmp_path, every=1)
    site.save(1)
    site.memory.forget("toy")
    held.set()
    await site.rest()
    assert site.counted("failed") == 1
    assert not site.memory.disk("toy").exists()
    assert list((site.memory.root / "transfers").iterdir()) == []


async def test_a_disk_that_takes_no_folder_costs_the_copy_only(tmp_path: Path) -> None:
    """Whatever is wrong with it: training hears nothing of it."""
    site = Site(tmp_path, every=1)
    (tmp_path / "machine").write_text("no folder")
    site.save(1)
    await site.rest()
    assert site.counted("failed") == 1
    assert [shard.step for shard in site.memory.shards()] == [1]
