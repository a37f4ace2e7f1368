"""How fast a saved step reaches its peer and S3, beside the bare copies that bound it, in turn."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import multiprocessing
import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import torch
from botocore.config import Config
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from benchmarks.site import Site
from benchmarks.table import Row
from holdfast import secret
from holdfast.agent.checkpoints import shard_client, shard_port
from holdfast.agent.checkpoints.memory import Memory
from holdfast.storage import objects
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.remote import manifests, publish
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter

NBYTES = 1 << 30
TENSORS = 64
JOB, RANK = "bench-tiers", 0
S3_RUNS = 5
SECRET = "bench"
PEER_NOTE = (
    f"to the peer's memory: one shard of {NBYTES >> 20} MiB over loopback, digest checked on arrival. Bare copy: "
    "sendfile from shared memory, recv_into a warm mapped file in another process, nothing checked."
)
S3_NOTE = (
    f"to durable in S3: {NBYTES >> 20} MiB from shared memory until the manifest is there, to the embedded "
    f"server. Bare: boto3's upload_file of the same bytes from shared memory. At most {S3_RUNS} runs."
)


def run(site: Site, n: int) -> list[Row]:
    """Two rows."""
    with _scratch() as folder:
        rank = _Rank(folder / "own")
        return [_peer(rank, folder, n), _s3(site, rank, folder, min(n, S3_RUNS))]


class _Saved(NamedTuple):
    """A step in shared memory."""

    path: Path
    header: buffers.ShardHeader


class _Rank:
    """Saves a state of ``NBYTES`` into shared memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = itertools.count(1)
        each = NBYTES // TENSORS // 4
        self._state = {"model": {f"layer.{n}": torch.randn(each) for n in range(TENSORS)}}
        planned = make_plan(self._state, folder, epoch=1, number=1)
        self._writer = ShardWriter(planned.layout, Owner(JOB, 1, RANK, 1), folder)

    def save(self) -> _Saved:
        """The next step, with every byte changed."""
        for tensor in self._state["model"].values():
            tensor.mul_(-1.0).add_(1e-3)
        contents = self._writer.collect(flatten_state_dict(self._state)[0])
        assert contents is not None
        path = self._writer.save(contents, next(self._steps))
        header = buffers.read_header(path)
        assert header is not None
        return _Saved(path, header)

    def metadata(self, header: buffers.ShardHeader) -> bytes:
        """The checkpoint's ``.metadata``."""
        return buffers.metadata_path(self._folder, header.plan).read_bytes()


def _peer(rank: _Rank, folder: Path, n: int) -> Row:
    with _child(_take_bare, folder / "bare") as bare, _child(_take_shards, folder / "peer") as ours:
        samples, bares = _in_turn(
            n,
            rank.save,
            lambda saved: shard_client.push(ours, SECRET, saved.path),
            lambda saved: _send_bare(bare, saved.path),
            warm_ups=2,
        )
    _print("peer copy", samples, bares)
    return Row(
        f"to the peer's memory, {NBYTES >> 20} MiB",
        "s",
        samples,
        peers={"bare socket copy": bares},
        ratio_target=1 / 0.8,
        notes=(PEER_NOTE,),
    )


def _s3(site: Site, rank: _Rank, folder: Path, n: int) -> Row:
    settings = site.settings
    store = objects.from_settings(settings)
    client = boto3.client(
        "s3",
        endpoint_url=settings.s3,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value()
        or secret.read(settings.s3_secret_path),
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=20),
    )
    plain = folder / "plain"

    def prepare() -> _Saved:
        store.delete_many([found.key for found in store.list(f"{JOB}/")])
        saved = rank.save()
        with saved.path.open("rb") as file:
            file.seek(saved.header.payload_offset)
            plain.write_bytes(file.read(saved.header.owned_nbytes))
        return saved

    def ours(saved: _Saved) -> None:
        header = saved.header
        key = manifests.checkpoint_key(JOB, header.step, header.epoch)
        publish.put_rank(store, saved.path, key, object_nbytes=settings.s3_object_mib << 20, within_s=600)
        publish.finish(
            store,
            key=key,
            job=JOB,
            step=header.step,
            epoch=header.epoch,
            world_size=1,
            metadata=rank.metadata(header),
            wait_s=0,
        )

    def bare(_: _Saved) -> None:
        client.upload_file(str(plain), settings.bucket, "bench-bare")

    samples, bares = _in_turn(n, prepare, ours, bare, warm_ups=1)
    store.delete_many([found.key for found in store.list(f"{JOB}/")])
    store.delete("bench-bare")
    _print("S3", samples, bares)
    return Row(
        f"to durable in S3, {NBYTES >> 20} MiB",
        "s",
        samples,
        peers={"boto3 upload_file": bares},
        ratio_target=1 / 0.9,
        notes=(S3_NOTE,),
    )


def _in_turn(
    n: int,
    prepare: Callable[[], _Saved],
    ours: Callable[[_Saved], object],
    bare: Callable[[_Saved], object],
    *,
    warm_ups: int,
) -> tuple[list[float], list[float]]:
    """Seconds that each of the two took, one after the other for every saved step; the warm-ups do not count."""
    samples, bares = [], []
    for number in range(warm_ups + n):
        saved = prepare()
        spent = _timed(lambda: ours(saved))  # noqa: B023
        beside = _timed(lambda: bare(saved))  # noqa: B023
        if number >= warm_ups:
            samples.append(spent)
            bares.append(beside)
    return samples, bares


def _print(what: str, samples: list[float], bares: list[float]) -> None:
    ours, bare = statistics.median(samples), statistics.median(bares)
    rate = NBYTES / 2**20
    print(
        f"  {what}: {rate / ours:.0f} MiB/s, bare {rate / bare:.0f} MiB/s: {bare / ours:.2f} of it",
        flush=True,
    )


def _timed(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _send_bare(address: str, path: Path) -> None:
    host, _, port = address.rpartition(":")
    with path.open("rb") as file, socket.create_connection((host, int(port))) as connection:
        nbytes = os.fstat(file.fileno()).st_size
        connection.sendall(nbytes.to_bytes(8, "little"))
        connection.sendfile(file, 0, nbytes)
        assert connection.recv(1) == b"k"


def _take_bare(folder: Path, parent: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        parent.send(f"127.0.0.1:{listener.getsockname()[1]}")
        buffer: Any = None
        while True:
            connection, _ = listener.accept()
            with connection:
                nbytes = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
                if buffer is None:
                    folder.write_bytes(b"")
                    with folder.open("r+b") as file:
                        os.posix_fallocate(file.fileno(), 0, nbytes)
                        buffer = mmap.mmap(file.fileno(), nbytes)
                done = 0
                with memoryview(buffer) as view:
                    while done < nbytes:
                        done += connection.recv_into(view[done:])
                connection.sendall(b"k")


def _take_shards(folder: Path, parent: Connection) -> None:
    port = shard_port.ShardPort(Memory("bench", folder), SECRET, "127.0.0.1")
    parent.send(port.address)
    while True:
        time.sleep(3600)


@contextlib.contextmanager
def _child(target: Callable[[Path, Connection], None], folder: Path) -> Iterator[str]:
    """A process that takes copies; its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path("/dev/shm") / f"holdfast-bench-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
