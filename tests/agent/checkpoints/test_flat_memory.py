"""Hundreds of saves leave the processes that carry them as large as a few do."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from holdfast.agent.checkpoints import shard_client
from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.shard_port import ShardPort
from holdfast.storage.checkpoints.remote import manifests, publish
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.objects.s3 import S3Store
from tests.agent.shards import write_shard
from tests.storage import servers

pytestmark = pytest.mark.e2e

MIB = 1 << 20
SECRET = "s3cret"


def own_memory(pid: int) -> int:
    """Bytes that belong to the process alone: mapped shards do not count."""
    found = psutil.Process(pid).memory_info()
    return int(found.rss - found.shared)


def serve_shards(folder: Path, parent: Connection) -> None:
    port = ShardPort(Memory("m1", folder), SECRET, "127.0.0.1")
    parent.send(port.address)
    time.sleep(3600)


def upload_often(endpoint: str, folder: Path, parent: Connection) -> None:
    """Report the memory in use after every upload."""
    store = S3Store(endpoint=endpoint, bucket="flat", access_key="tester", secret_key="not-a-secret")
    store.ensure_bucket()
    for step in range(1, 61):
        path = write_shard(folder, step=step, payload=bytes([step]) * MIB, owned=MIB)
        key = manifests.checkpoint_key("toy", step, 1)
        publish.put_rank(store, path, key, object_nbytes=1 << 40, within_s=60.0)
        parent.send(own_memory(os.getpid()))


@pytest.fixture
def spawned() -> Iterator[multiprocessing.context.SpawnContext]:
    context = multiprocessing.get_context("spawn")
    yield context
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def test_five_hundred_copies_from_a_peer(
    tmp_path: Path, spawned: multiprocessing.context.SpawnContext
) -> None:
    """The agent is no larger than after fifty, and its shared memory is exactly two buffers."""
    ours, theirs = spawned.Pipe()
    child = spawned.Process(target=serve_shards, args=(tmp_path / "peer", theirs), daemon=True)
    child.start()
    address = ours.recv()
    early = 0
    for step in range(1, 501):
        path = write_shard(tmp_path / "mine", step=step, payload=bytes([step % 251]) * MIB)
        shard_client.push(address, SECRET, path)
        if step == 50:
            early = own_memory(int(child.pid or 0))
    assert own_memory(int(child.pid or 0)) - early < 2 * MIB
    kept = [path for path in (tmp_path / "peer").rglob("*") if path.is_file()]
    assert sorted(path.name for path in kept) == ["r0-a.shard", "r0-b.shard"]
    assert [header.step for _, header in buffers.inventory(tmp_path / "peer" / "peer" / "toy")] == [499, 500]


def test_sixty_uploads(tmp_path: Path, spawned: multiprocessing.context.SpawnContext) -> None:
    """Nothing of what was sent stays in the process that sent it."""
    (tmp_path / "s3").mkdir()
    with servers.rclone(tmp_path / "s3", "tester", "not-a-secret") as endpoint:
        ours, theirs = spawned.Pipe()
        args = (endpoint, tmp_path / "mine", theirs)
        child = spawned.Process(target=upload_often, args=args, daemon=True)
        child.start()
        theirs.close()  # so that its death ends the wait
        sizes = [ours.recv() for _ in range(60)]
    assert max(sizes[-20:]) - max(sizes[10:20]) < 4 * MIB, sizes
