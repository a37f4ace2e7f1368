"""Uploads to a store that is behind: bounded memory, counted omissions, and a pace that falls and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.setbacks import Setbacks
from holdfast.agent.checkpoints.uploads import UploadLimits, Uploads
from holdfast.agent.metrics import Metrics
from holdfast.errors import UnavailableError
from holdfast.models.agent import Persist
from holdfast.models.checkpoint import Copies, Retention
from holdfast.models.setback import Place
from holdfast.storage.checkpoints.save import buffers
from tests.agent.gateway import eventually
from tests.agent.shards import write_shard


class Store:
    """The carrier in front of a store: parts are taken when it is let go, or refused."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.refuses = False
        self.sent: list[int] = []
        self.whole = True
        """Every part was, when it was sent, the shard that it was lent as."""

    async def call(self, operation: str, timeout_s: float, **arguments: Any) -> Any:
        assert timeout_s > 0
        if operation != "put_part":
            return None
        await self.go.wait()
        if self.refuses:
            raise UnavailableError("S3 at nowhere: refused")
        header = buffers.verify(Path(arguments["path"]))
        self.whole = self.whole and arguments["key"].endswith(f"step-{header.step:010d}-e1/")
        self.sent.append(header.step)
        return None


class Site:
    """One rank (not rank 0, which waits for the others) that saves on one machine."""

    def __init__(self, folder: Path) -> None:
        self.memory = Memory("m1", folder)
        self.store, self.metrics, self.setbacks = Store(), Metrics(), Setbacks()
        carrier: Any = self.store
        self.uploads = Uploads(
            carrier,
            self.memory,
            UploadLimits(part_s=60, parts_s=60, object_nbytes=1 << 20),
            self.metrics,
            done=lambda _: None,
            dropped=lambda *_: None,
            setbacks=self.setbacks,
        )
        start = SimpleNamespace(
            job="toy",
            epoch=1,
            s3_every_steps=1,
            replay=None,
            world_size=2,
            retention=Retention(),
            copies=Copies(),
        )
        self.run: Any = SimpleNamespace(start=start, name="toy-e1")

    async def save(self, *steps: int) -> None:
        """The rank saves steps, one after the other, and what is due begins."""
        for step in steps:
            path = write_shard(self.memory.own("toy"), 1, step)
            self.uploads.saved(self.run, 1, step, path, since=step - 1)
            await asyncio.sleep(0)

    async def rest(self) -> None:
        """Until no upload is under way."""

        async def idle() -> bool:
            return not self.uploads._tasks

        await eventually(idle)

    def counted(self, outcome: str) -> int:
        return int(self.metrics.uploads.labels(outcome)._value.get())

    def files(self, suffix: str) -> int:
        return len(list(self.memory.root.rglob(f"*{suffix}")))


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_one_step_is_lent_and_the_rest_is_left_out(site: Site) -> None:
    """However long the store is away: two slots, one loan and its successor at most; it was sent as saved."""
    await site.save(*range(1, 41))
    assert site.files(".shard") <= 3
    assert site.files(".reserved") <= 1
    # After each omission the stride doubles: 2, 4, 8, 16 and 32 were due.
    assert site.counted("skipped") == 5
    site.store.go.set()
    await site.rest()
    assert site.store.sent == [1]
    assert site.store.whole
    assert (site.counted("ok"), site.counted("failed")) == (1, 0)
    assert site.files(".shard") == 2
    assert site.files(".reserved") == 0


async def test_it_catches_up_when_the_store_is_back(site: Site) -> None:
    """Uploads that end in time bring the pace back to every due step."""
    await site.save(*range(1, 9))
    site.store.go.set()
    await site.rest()
    for step in range(9, 101):
        await site.save(step)
        await site.rest()
    assert site.store.sent[-5:] == [96, 97, 98, 99, 100]


async def test_a_refused_upload_gives_its_memory_back(site: Site) -> None:
    """It is counted, and the next due step is tried again."""
    site.store.refuses = True
    site.store.go.set()
    await site.save(1)
    await site.rest()
    assert (site.counted("failed"), site.counted("ok")) == (1, 0)
    assert [(each.place, each.count) for each in site.setbacks.summaries("toy", 1)] == [(Place.S3, 1)]
    assert site.files(".reserved") == 0
    assert list((site.memory.root / "transfers").iterdir()) == []
    site.store.refuses = False
    await site.save(2)
    await site.rest()
    assert site.store.sent == [2]
    assert site.setbacks.summaries("toy", 1) == ()


async def test_an_order_is_for_the_save_of_one_epoch(site: Site) -> None:
    """A newer epoch, which fell before all its ranks had the step, has a shard of it as well."""
    write_shard(site.memory.own("toy"), 1, 7)
    write_shard(site.memory.own("toy"), 1, 7, epoch=2)
    site.store.go.set()
    await site.uploads.persist(
        Persist(job="toy", epoch=2, incarnation="i1", step=7, shard_epoch=1, world_size=2, ranks=(1,))
    )
    await site.rest()
    assert (site.store.sent, site.store.whole) == ([7], True)


async def test_an_epoch_that_repeats_a_step_leaves_the_loan_of_the_one_before(site: Site) -> None:
    """The store is slow: the older epoch's upload is still under way when the same step is ordered again."""
    await site.save(7)
    path = write_shard(site.memory.own("toy"), 1, 7, epoch=2)
    await site.uploads.persist(
        Persist(job="toy", epoch=2, incarnation="i1", step=7, shard_epoch=2, world_size=2, ranks=(1,))
    )
    await asyncio.sleep(0)
    assert buffers.require_header(path).epoch == 2
    site.store.go.set()
    await site.rest()
    assert site.store.sent == [7, 7]
    assert (site.counted("ok"), site.counted("failed")) == (2, 0)
    assert list((site.memory.root / "transfers").iterdir()) == []


async def test_two_orders_at_once_send_one_part(site: Site) -> None:
    """The second one comes while the first reads what it needs: both would have one name for their loans."""
    for step in (6, 7):
        write_shard(site.memory.own("toy"), 1, step)
    order = Persist(job="toy", epoch=1, incarnation="i1", step=7, shard_epoch=1, world_size=2, ranks=(1,))
    await asyncio.gather(site.uploads.persist(order), site.uploads.persist(order))
    site.store.go.set()
    await site.rest()
    assert site.store.sent == [7]
    assert (site.counted("ok"), site.counted("failed")) == (1, 0)
    assert list((site.memory.root / "transfers").iterdir()) == []


async def test_an_order_that_is_repeated_sends_nothing_twice(site: Site) -> None:
    """It is repeated until the checkpoint is whole, which may wait for another machine; what failed is sent again."""
    order = Persist(job="toy", epoch=1, incarnation="i1", step=7, shard_epoch=1, world_size=2, ranks=(1,))
    for step in (6, 7):
        write_shard(site.memory.own("toy"), 1, step)
    site.store.go.set()
    site.store.refuses = True
    await site.uploads.persist(order)
    await site.rest()
    site.store.refuses = False
    for _ in range(3):
        await site.uploads.persist(order)
        await site.rest()
    assert site.store.sent == [7]
    assert list((site.memory.root / "transfers").iterdir()) == []
