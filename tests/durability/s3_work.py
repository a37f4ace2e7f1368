"""Work that is killed on its way to the object store, and the checks after it. A server's own disk is not checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from holdfast.clock import FakeClock
from holdfast.models.checkpoint import Retention
from holdfast.policies.restore.retention import keep
from holdfast.storage.checkpoints.format import plan_file
from holdfast.storage.checkpoints.remote import export, manifests, publish
from holdfast.storage.checkpoints.remote.garbage import collect
from holdfast.storage.checkpoints.remote.verify import verify
from holdfast.storage.code import archive, versions
from holdfast.storage.objects.s3 import S3Store
from tests.agent.shards import write_shard
from tests.durability.work import Acknowledge, Work

STEPS = (10, 20)
PLAN = plan_file.join(b"stock metadata", b"compact metadata")
_GRACE_S = 1000.0


def all_work(store: S3Store) -> dict[str, Work]:
    """By name; each at a store with an empty bucket."""

    def bound(function: Callable[..., None]) -> Callable[..., None]:
        return partial(function, store)

    return {
        "upload": Work(("s3.file", "s3.part", "s3.boxes", "s3.metadata", "s3.manifest"), bound(upload), bound(whole)),
        "store": Work(("s3.code",), bound(store_code), bound(code_is_there)),
        "garbage": Work(("garbage",), bound(collect_garbage), bound(newest_is_whole), bound(upload_all)),
        "export": Work(("export",), bound(take_out), bound(all_or_none), bound(upload_all)),
    }  # fmt: skip


def upload(store: S3Store, folder: Path, acknowledge: Acknowledge) -> None:
    """Two checkpoints of two ranks."""
    for step in STEPS:
        key = manifests.checkpoint_key("toy", step, 1)
        for rank in (0, 1):
            path = write_shard(folder, rank, step, payload=bytes([step + rank]) * 5000)
            publish.put_rank(store, path, key, object_nbytes=1 << 20, within_s=60)
        publish.finish(
            store, key=key, job="toy", step=step, epoch=1, world_size=2, metadata=PLAN, wait_s=0,
            clock=FakeClock(float(step)),
        )  # fmt: skip
        acknowledge(str(step))


def upload_all(store: S3Store, folder: Path) -> None:
    """As :func:`upload`, beforehand."""
    upload(store, folder.with_name(f"{folder.name}-before"), lambda _: None)


def whole(store: S3Store, folder: Path, acknowledged: Sequence[str]) -> None:
    """Complete checkpoints are whole; after the work is done again, all of them are there."""
    _complete_and_whole(store, {int(step) for step in acknowledged})
    upload(store, folder, lambda _: None)
    _complete_and_whole(store, set(STEPS))


def store_code(store: S3Store, folder: Path, acknowledge: Acknowledge) -> None:
    """One code version."""
    (folder / "source").mkdir(parents=True, exist_ok=True)
    (folder / "source" / "train.py").write_text("print()")
    acknowledge(versions.store(store, "toy", folder / "source"))


def code_is_there(store: S3Store, folder: Path, acknowledged: Sequence[str]) -> None:
    """Stored again it is the same, and checks out."""
    version = versions.store(store, "toy", folder / "source")
    assert set(acknowledged) <= {version}
    assert archive.pack(versions.checkout(store, "toy", version, folder / version)).version == version


def collect_garbage(store: S3Store, folder: Path, acknowledge: Acknowledge) -> None:
    """The older checkpoint goes."""
    rules, clock = Retention(keep_last=1), FakeClock(time.time() + 2 * _GRACE_S)
    collect(store, "toy", partial(keep, rules=rules), grace_s=_GRACE_S, clock=clock)
    acknowledge("tidied")


def newest_is_whole(store: S3Store, folder: Path, acknowledged: Sequence[str]) -> None:
    """The one that stays, before and after it is done again."""
    _complete_and_whole(store, {STEPS[-1]})
    collect_garbage(store, folder, lambda _: None)
    _complete_and_whole(store, {STEPS[-1]})


def take_out(store: S3Store, folder: Path, acknowledge: Acknowledge) -> None:
    """Export the older one."""
    export.to_directory(store, manifests.checkpoint_key("toy", STEPS[0], 1), folder / "out")
    acknowledge("out")


def all_or_none(store: S3Store, folder: Path, acknowledged: Sequence[str]) -> None:
    """The directory is there with all files, or not at all."""
    out = folder / "out"
    assert out.exists() or not acknowledged
    if out.exists():
        assert (out / "__0_0.distcp").read_bytes() == bytes([STEPS[0]]) * 2500
        assert (out / ".metadata").read_bytes() == b"stock metadata"


def _complete_and_whole(store: S3Store, wanted: set[int]) -> None:
    found = manifests.list_remote(store, "toy")
    assert {each.step for each in found} >= wanted
    for each in found:
        assert [file for file in verify(store, each.key) if file.problem] == []
