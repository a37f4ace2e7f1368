"""Checkpoints straight from shard files into the store: incremental, manifest last, loadable by stock torch."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast.clock import FakeClock
from holdfast.errors import CheckpointError, UnavailableError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.remote import export, manifests, publish
from holdfast.storage.checkpoints.remote.manifests import object_key
from holdfast.storage.checkpoints.save import buffers, part_copy, slot_files
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter
from holdfast.storage.objects.s3 import S3Store

pytestmark = pytest.mark.torch

FROZEN, TRAINED = 6, 3
OBJECT_BYTES = 64 * 1024


def state(step: int) -> dict[str, Any]:
    """Some layers that never change, some that always do."""
    layers = {f"frozen.{n}": torch.full((128, 128), float(n + 1)) for n in range(FROZEN)}
    layers |= {f"trained.{n}": torch.full((128, 128), float(100 * step + n)) for n in range(TRAINED)}
    return {"model": layers, "loader": {"position": step}}


class Rank:
    """One rank that saves and uploads."""

    def __init__(self, folder: Path, job: str = "gpt") -> None:
        self.folder, self.job = folder, job
        planned = make_plan(state(0), folder, epoch=1, number=1)
        self.writer = ShardWriter(planned.layout, Owner(job, 1, 0, 1), folder)

    def save(self, step: int) -> Path:
        contents = self.writer.collect(flatten_state_dict(state(step))[0])
        assert contents is not None
        return self.writer.save(contents, step)

    def put(self, store: S3Store, step: int) -> publish.Uploaded:
        path = self.save(step)
        return publish.put_rank(
            store, path, manifests.checkpoint_key(self.job, step, 1), object_nbytes=OBJECT_BYTES, within_s=60
        )

    def put_part(self, store: S3Store, step: int) -> publish.Uploaded:
        """As :meth:`put`, from a copy of what the rank owns."""
        path = self.save(step)
        part = part_copy.take(path, buffers.require_header(path))
        self.save(step + 2)
        self.save(step + 1)  # over the same slot
        return publish.put_rank(
            store, part, manifests.checkpoint_key(self.job, step, 1), object_nbytes=OBJECT_BYTES, within_s=60
        )

    def finish(
        self, store: S3Store, step: int, world_size: int = 1, *, in_order: bool = False
    ) -> RemoteCheckpoint:
        header = buffers.inventory(self.folder)[-1][1]
        return publish.finish(
            store,
            key=manifests.checkpoint_key(self.job, step, 1),
            job=self.job,
            step=step,
            epoch=1,
            world_size=world_size,
            metadata=buffers.metadata_path(self.folder, header.plan).read_bytes(),
            wait_s=0,
            in_order=in_order,
            clock=FakeClock(float(step)),
        )

    def publish(self, store: S3Store, step: int) -> tuple[publish.Uploaded, RemoteCheckpoint]:
        return self.put(store, step), self.finish(store, step)


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "shards")


def loads(store: S3Store, checkpoint: RemoteCheckpoint, folder: Path, step: int) -> None:
    """Check that the checkpoint in the store, downloaded, is a stock one with the values of ``step``."""
    export.to_directory(store, checkpoint.key, folder)
    into = state(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_load(into, storage_reader=FileSystemReader(folder), no_dist=True)
    wanted = state(step)
    assert all(torch.equal(into["model"][name], wanted["model"][name]) for name in wanted["model"])
    assert into["loader"] == wanted["loader"]


def names(store: S3Store, checkpoint: RemoteCheckpoint) -> set[str]:
    return {found.key.rpartition("/")[2] for found in store.list(checkpoint.key)}


def test_what_did_not_change_is_not_uploaded_again(store: S3Store, rank: Rank, tmp_path: Path) -> None:
    """Its file is referred to, from checkpoint to checkpoint, and comes back the same."""
    first, one = rank.publish(store, 10)
    second, two = rank.publish(store, 20)
    third, three = rank.publish(store, 30)
    assert first.sent_nbytes == first.nbytes
    assert second.sent_nbytes == third.sent_nbytes < first.nbytes / 2
    referred = [file.name for file in manifests.read_manifest(store, three.key).files if file.name[0] == "/"]
    # Also after two steps they refer to where the bytes are.
    assert referred
    assert all(name.startswith(f"/{store.bucket}/{one.key}") for name in referred)
    assert len(names(store, one)) > len(names(store, three))
    for number, checkpoint in enumerate((one, two, three), 1):
        loads(store, checkpoint, tmp_path / f"back{number}", 10 * number)


def test_a_copied_part_uploads_as_its_shard_does(store: S3Store, rank: Rank, tmp_path: Path) -> None:
    """The shard itself may be overwritten as soon as the copy is taken."""
    uploaded, checkpoint = rank.put_part(store, 10), rank.finish(store, 10)
    assert uploaded.sent_nbytes == uploaded.nbytes
    loads(store, checkpoint, tmp_path / "back", 10)


def test_block_digests_are_there_for_referred_files_too(store: S3Store, rank: Rank) -> None:
    """A range of any file can be verified without reading the whole."""
    rank.publish(store, 10)
    _, checkpoint = rank.publish(store, 20)
    files = manifests.read_manifest(store, checkpoint.key).files
    found = {file.name: manifests.read_blocks(store, checkpoint.key, file) for file in files}
    assert found.pop(".metadata") is None  # it is read whole
    assert all(found.values())
    with pytest.raises(CheckpointError, match="not those that the manifest means"):
        manifests.read_blocks(store, checkpoint.key, files[0].model_copy(update={"blocks": "0"}))


def test_a_reference_that_is_gone_is_uploaded_again(store: S3Store, rank: Rank, tmp_path: Path) -> None:
    """A person cleaned up by hand: the next checkpoint is whole."""
    _, one = rank.publish(store, 10)
    for found in store.list(one.key):
        if found.key.endswith(".distcp"):
            store.delete(found.key)
    again, two = rank.publish(store, 20)
    assert again.sent_nbytes == again.nbytes
    loads(store, two, tmp_path / "back", 20)


def test_only_complete_checkpoints_are_referred_to(store: S3Store, rank: Rank) -> None:
    """A checkpoint without a manifest may be collected as garbage any time."""
    rank.put(store, 10)
    assert rank.put(store, 20).sent_nbytes == rank.put(store, 30).nbytes


def test_jobs_in_one_bucket_never_mix(store: S3Store, rank: Rank, tmp_path: Path) -> None:
    """Nothing is referred to, listed or restored across jobs, also when the bytes and one name's start are the same."""
    _, one = rank.publish(store, 10)
    other = Rank(tmp_path / "other", job="gpt-2")
    uploaded, two = other.publish(store, 10)
    assert uploaded.sent_nbytes == uploaded.nbytes
    assert manifests.list_remote(store, "gpt") == [one]
    assert manifests.list_remote(store, "gpt-2") == [two]
    with pytest.raises(CheckpointError, match="no part of gpt/checkpoints"):
        publish.put_rank(
            store, other.save(20), manifests.checkpoint_key("gpt", 20, 1), object_nbytes=1, within_s=9
        )
    # A manifest that was copied into another job's folder.
    foreign = manifests.checkpoint_key("gpt", 20, 1)
    store.put(object_key(foreign, manifests.MANIFEST), store.get(object_key(two.key, manifests.MANIFEST)))
    assert manifests.list_remote(store, "gpt") == [one]
    assert manifests.latest(store, "gpt") == one
    with pytest.raises(CheckpointError, match=r"manifest of job 'gpt-2' step 10 epoch 1.*refused"):
        export.to_directory(store, foreign, tmp_path / "back")


def test_a_shard_that_is_overwritten_meanwhile_is_no_part(store: S3Store, rank: Rank, tmp_path: Path) -> None:
    """Without a loan the next save but one hits the bytes under the upload: noticed, and nothing counts."""
    path = rank.save(10)
    one_at_a_time = threading.Lock()  # files are put by several threads

    class Meanwhile(S3Store):
        def put_view(self, key: str, view: memoryview, *, within_s: float) -> None:
            super().put_view(key, view, within_s=within_s)
            with one_at_a_time:
                rank.save(11)
                rank.save(12)

    busy = Meanwhile(
        endpoint=store.endpoint, bucket=store.bucket, access_key="tester", secret_key="not-a-secret"
    )
    key = manifests.checkpoint_key("gpt", 10, 1)
    # Noticed here, or by the store: the bytes are not those that were announced.
    with pytest.raises((CheckpointError, UnavailableError)):
        publish.put_rank(busy, path, key, object_nbytes=OBJECT_BYTES, within_s=60)
    with pytest.raises(CheckpointError, match="1 of 1 parts never came"):
        rank.finish(store, 10)
    assert manifests.list_remote(store, "gpt") == []


def test_a_part_that_was_left_out_is_not_waited_for(
    store: S3Store, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 sent a later step of the epoch: it does not come back to this one, unless it is ordered to."""
    monkeypatch.setattr(publish, "_OVERTAKEN_EVERY_S", -1.0)
    rank.put(store, 10)
    for key in (manifests.checkpoint_key("gpt", 8, 1), manifests.checkpoint_key("gpt", 12, 2)):
        store.put(object_key(key, manifests.parts_name(1)), b"{}")  # an earlier step, and another epoch
    with pytest.raises(CheckpointError, match="1 of 2 parts never came"):
        rank.finish(store, 10, world_size=2, in_order=True)
    later = manifests.checkpoint_key("gpt", 12, 1)
    store.put(object_key(later, manifests.parts_name(1)), b"{}")
    with pytest.raises(CheckpointError, match=f"rank 1 left it out, and sent {later} since"):
        rank.finish(store, 10, world_size=2, in_order=True)
    with pytest.raises(CheckpointError, match="1 of 2 parts never came"):
        rank.finish(store, 10, world_size=2)


def test_a_loan_outlasts_the_saves_after_it(store: S3Store, rank: Rank, tmp_path: Path) -> None:
    """The same, lent: the upload is of the step that was lent, whatever is saved meanwhile."""
    path = rank.save(10)
    loan = tmp_path / "loan.shard"
    slot_files.lend(path, 10, loan)
    for step in range(11, 15):
        rank.save(step)
    key = manifests.checkpoint_key("gpt", 10, 1)
    publish.put_rank(store, loan, key, object_nbytes=OBJECT_BYTES, within_s=60)
    slot_files.release(path, loan)
    loads(store, rank.finish(store, 10), tmp_path / "back", 10)


def test_finishing_twice_changes_nothing(store: S3Store, rank: Rank) -> None:
    """A checkpoint that is complete stays as it is, and its parts are not sent again."""
    _, done = rank.publish(store, 10)
    before = {found.key: found.modified_at for found in store.list("")}
    assert rank.put(store, 10).sent_nbytes == 0
    assert rank.finish(store, 10) == done
    assert {found.key: found.modified_at for found in store.list("")} == before


def test_parts_of_ranks_that_began_to_differ_are_no_checkpoint(store: S3Store, rank: Rank) -> None:
    """A tensor that one rank saves for several was not the same on these: nothing is completed."""
    rank.put(store, 10)
    key = manifests.checkpoint_key(rank.job, 10, 1)
    for number, replicated in enumerate([(5, 7), (5, 8)]):
        parts = publish.read_parts(store, key, 0).model_copy(update={"replicated": replicated})
        store.put(object_key(key, manifests.parts_name(number)), parts.model_dump_json().encode())
    with pytest.raises(CheckpointError, match=r"not the same on ranks \[0, 1\]"):
        rank.finish(store, 10, world_size=2)
    assert not store.exists(object_key(key, manifests.MANIFEST))


@pytest.mark.parametrize("hashes", [[(5, 7), (5, 7)], [(5, 0), (5, 7), (0, 7)], [(), (5,)], [(), ()]])
def test_parts_of_one_state_fit_together(hashes: list[tuple[int, ...]]) -> None:
    """A rank without such tensors, or of an older version, has no say."""
    publish.require_alike("key", [manifests.Parts(files=(), replicated=each) for each in hashes])
