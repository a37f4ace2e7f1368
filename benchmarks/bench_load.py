"""How fast ranks load a checkpoint from S3, beside stock torch through fsspec and through s3torchconnector.

All load the same stock checkpoint from the same ``rclone serve s3``, in turn, in fresh processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.peers import VENV
from benchmarks.site import Site
from benchmarks.table import Row
from holdfast.models.checkpoint import Shard, Tier
from holdfast.policies.restore import restore_plan
from holdfast.storage.checkpoints.format.blocks import digest_blocks
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.read_plan import Needs, plan_reads
from holdfast.storage.objects.s3 import S3Store
from tests.e2e.waiting import free_ports
from tests.storage.servers import rclone

ROOT = Path(__file__).parents[1]
NBYTES = int(os.environ.get("BENCH_LOAD_BYTES", str(512 << 20)))
RANKS = 2
LONGEST_S = 600.0
PEERS = ("fsspec", "s3torchconnector")
PLAN_RANKS, PLAN_TENSORS = 10_240, 500


def run(site: Site, n: int) -> list[Row]:
    """Loads of a replicated and of a sharded state; and planning for ten thousand ranks."""
    rows = [_planning(n)]
    for layout in ("replicated", "sharded"):
        with _served(site.folder()) as order:
            rows.append(_loads(order | {"layout": layout, "ranks": RANKS, "nbytes": NBYTES}, min(n, 3)))
    return rows


def _loads(order: dict[str, Any], n: int) -> Row:
    key = _publish(order)
    order = order | {"key": key}
    samples: dict[str, list[float]] = {way: [] for way in ("holdfast", *PEERS)}
    cost: dict[str, Any] = {}
    sums = set()
    for _ in range(n):
        for way, taken in samples.items():
            try:
                results = _ranks(order | {"way": way})
            except RuntimeError as error:
                print(f"  {way}: {error}", flush=True)
                continue
            taken.append(max(each["s"] for each in results))
            sums.add(tuple(each["sum"] for each in results))
            cost = results[0] if way == "holdfast" else cost
    assert len(sums) == 1, "all ways load the same values"
    medians = {way: f"{np.median(found):.2f} s" for way, found in samples.items() if found}
    print(f"  {order['layout']}: {medians}", flush=True)
    note = (
        f"load from S3, {order['layout']}: {cost['job_requests']} requests, {cost['job_read_nbytes'] / 2**20:.0f} MiB "
        f"read, {cost['amplification']:.3f} of what was needed"
    )
    return Row(
        f"load {NBYTES >> 20} MiB from S3, {RANKS} ranks, {order['layout']}",
        "s",
        samples.pop("holdfast"),
        peers=samples,
        ratio_target=1 / 1.5,
        notes=(note,),
        details=cost,
    )


def _publish(order: dict[str, Any]) -> str:
    """Save with stock torch; put it where our manifests and digests lie beside it."""
    folder = Path(order["data"]) / "saved"
    _ranks(order | {"way": "save", "folder": str(folder)})
    key = manifests.checkpoint_key("bench", 1, 1)
    target = Path(order["data"]) / order["bucket"] / key
    target.parent.mkdir(parents=True)
    folder.rename(target)
    (target / "parts").mkdir()
    store = S3Store(**{name: order[name] for name in ("endpoint", "bucket", "access_key", "secret_key")})
    files = []
    for number, path in enumerate(sorted(target.glob("*.distcp"))):
        data = path.read_bytes()
        part = manifests.PartFile(
            name=path.name, start=0, nbytes=len(data), digest="", blocks=digest_blocks(data)
        )
        parts = manifests.Parts(files=(part,))
        store.put(manifests.object_key(key, manifests.parts_name(number)), parts.model_dump_json().encode())
        files.append(part.described(manifests.parts_name(number)))
    metadata = (target / ".metadata").read_bytes()
    files.append(
        manifests.RemoteFile(
            name=manifests.METADATA, nbytes=len(metadata), digest=xxhash.xxh3_128_hexdigest(metadata)
        )
    )
    manifest = manifests.Manifest(
        job="bench",
        step=1,
        epoch=1,
        world_size=RANKS,
        saved_at=time.time(),
        nbytes=sum(file.nbytes for file in files),
        files=tuple(files),
    )
    store.put(manifests.object_key(key, manifests.MANIFEST), manifest.model_dump_json().encode())
    for file in files:
        # rclone computes an object's MD5 when it is first asked.
        store.head(manifests.object_key(key, file.name))
    return key


def _ranks(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a way on all ranks; the report of each."""
    order = order | {"port": free_ports(1)}
    python = (
        sys.executable if order["way"] in {"save", "holdfast", "fsspec"} else str(VENV / "bin" / "python")
    )
    command = [python, "-m", "benchmarks.load_ranks", json.dumps(order)]
    started = [
        subprocess.Popen(
            [*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for rank in range(order["ranks"])
    ]
    try:
        ended = [process.communicate(timeout=LONGEST_S) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise RuntimeError((ended[0][1].strip().splitlines() or ["no message"])[-1])
    return [json.loads(out.splitlines()[-1]) if out.strip() else {} for out, _ in ended]


@contextmanager
def _served(folder: Path) -> Iterator[dict[str, Any]]:
    """An S3 server over ``folder``."""
    (folder / "bench").mkdir(parents=True)
    with rclone(folder, "bench", "secret") as endpoint:
        made = {"endpoint": endpoint, "bucket": "bench", "access_key": "bench", "secret_key": "secret"}
        _wait_for(S3Store(**made))
        yield made | {"data": str(folder)}


def _wait_for(store: S3Store) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            store.ensure_bucket()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _planning(n: int) -> Row:
    """The restore plan and the read plan of 10,240 ranks with 500 tensors each."""
    homes = {rank: f"m{rank // 8}" for rank in range(PLAN_RANKS)}
    shards = [
        Shard(
            job="bench",
            rank=rank,
            step=step,
            epoch=1,
            machine=f"m{(rank // 8 + shift) % (PLAN_RANKS // 8)}",
            tier=tier,
            nbytes=1,
            digest="",
            world_size=PLAN_RANKS,
        )
        for rank in homes
        for step in (8, 9)
        for shift, tier in ((0, Tier.MEMORY), (1, Tier.PEER))
    ]
    rank = np.repeat(np.arange(PLAN_RANKS), PLAN_TENSORS)
    tensor = np.tile(np.arange(PLAN_TENSORS), PLAN_RANKS)
    files = PLAN_RANKS // 8
    # Every second block is another's, so that no two ranges of a rank join.
    needs = Needs(rank, rank // 8, tensor * 2000, tensor * 2000 + 900)
    samples, steps = [], []
    for _ in range(n):
        begun = time.perf_counter()
        plan = restore_plan.choose(shards, [], PLAN_RANKS, homes)
        chosen = time.perf_counter()
        reads = plan_reads(
            needs,
            np.full(files, 1000),
            np.full(files, PLAN_TENSORS * 2000),
            piece_nbytes=8 << 20,
            turn_nbytes=64 << 20,
        )
        samples.append(time.perf_counter() - begun)
        steps.append(chosen - begun)
        assert plan.step == 9
        assert reads.read_nbytes == files * PLAN_TENSORS * 1000
    print(f"  planning: {np.median(samples):.2f} s, of which sources {np.median(steps):.2f} s", flush=True)
    return Row(
        f"restore plan of {PLAN_RANKS} ranks x {PLAN_TENSORS} tensors",
        "s",
        samples,
        10.0,
        notes=(
            "restore plan: choice of step and sources, then who reads which of 5.1 million ranges from S3.",
        ),
        details={"sources_s": steps},
    )
