"""One rank loads from S3; what is damaged, foreign or missing is refused by name."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError, DamagedError, UnavailableError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.policies.classify import last_words
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.remote import boxes_reader, manifests
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.objects.s3 import S3Store
from tests.storage.checkpoints.upload import upload

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]


def state(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {
        "model": {
            "large": torch.randn(300, 1100),
            "half": torch.randn(3).bfloat16(),
            "mask": torch.rand(9) > 0.5,
            "count": torch.tensor(3 + seed),
            "empty": torch.empty(0, 4),
            "strided": torch.randn(6, 4).t(),
        },
        "loader": {"position": 17 + seed, "names": ["a", "b"], "seen": frozenset([1, seed])},
        "random": {
            "python": random.Random(seed).getstate(),
            "numpy": np.random.RandomState(seed).get_state(),
        },
    }


def into(values: dict[str, Any]) -> Callable[[Metadata], dict[str, Any]]:
    return lambda _: values


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.fixture(params=["compact", "stock"])
def saved(request: pytest.FixtureRequest, objects: S3Store, tmp_path: Path) -> RemoteCheckpoint:
    """A checkpoint of stock torch in S3, with metadata in both forms or in the stock one alone."""
    dcp.save(state(7), checkpoint_id=tmp_path / "ckpt", no_dist=True)
    return upload(objects, tmp_path / "ckpt", compact=request.param == "compact")


ONLY_STOCK = pytest.mark.parametrize("saved", ["stock"], indirect=True)
ONLY_COMPACT = pytest.mark.parametrize("saved", ["compact"], indirect=True)


def flip(store: S3Store, key: str, at: int) -> None:
    data = bytearray(store.get(key))
    data[at] ^= 1
    store.put(key, bytes(data))


def test_every_kind_of_value_comes_back(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """Tensors of all types and shapes, positions, random state; and it reports its cost."""
    source = RemoteReader(objects, saved.key, job="gpt", step=4)
    assert same(reader.load_remote(source, into(state())), state(7))
    assert source.report is not None
    assert source.report.amplification < 1.05
    assert source.report.requests > 0


def test_stock_load_takes_the_reader(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """It is a storage reader like any other."""
    values = state()
    dcp.load(values, storage_reader=RemoteReader(objects, saved.key), no_dist=True)
    assert torch.equal(values["model"]["large"], state(7)["model"]["large"])


def test_a_part_of_the_state_reads_a_part_of_the_bytes(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """A reader of small tensors alone does not download the large one."""
    source = RemoteReader(objects, saved.key)
    loaded = reader.load_remote(
        source, into({"loader": {"position": 0}, "model": {"half": torch.zeros(3).bfloat16()}})
    )
    assert loaded["loader"]["position"] == 24
    assert source.report is not None
    assert source.report.read_nbytes < saved.nbytes / 2


def test_a_checkpoint_without_block_digests_is_verified_whole(
    objects: S3Store, saved: RemoteCheckpoint
) -> None:
    """As older versions uploaded it: one block is the file."""
    manifest = manifests.read_manifest(objects, saved.key)
    old = [file.model_copy(update={"part": "", "blocks": ""}) for file in manifest.files]
    where = manifests.object_key(saved.key, manifests.MANIFEST)
    objects.put(where, manifest.model_copy(update={"files": tuple(old)}).model_dump_json().encode())
    assert same(reader.load_remote(RemoteReader(objects, saved.key), into(state())), state(7))
    flip(objects, f"{saved.key}__0_0.distcp", 500_000)
    with pytest.raises(DamagedError, match=r"__0_0\.distcp"):
        reader.load_remote(RemoteReader(objects, saved.key), into(state()))


@pytest.mark.parametrize("at", [40, 300_000, -2000])
def test_one_flipped_byte_is_found(objects: S3Store, saved: RemoteCheckpoint, at: int) -> None:
    """Wherever it is; job, step and file are named."""
    flip(objects, f"{saved.key}__0_0.distcp", at)
    with pytest.raises(DamagedError, match=r"job 'gpt' step 4 in S3 .*__0_0.distcp, bytes \d+ to \d+"):
        reader.load_remote(RemoteReader(objects, saved.key), into(state()))


@ONLY_STOCK
def test_flipped_metadata_is_found(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """Before it is unpickled."""
    flip(objects, f"{saved.key}.metadata", 700)
    with pytest.raises(DamagedError, match=r"job 'gpt' step 4 in S3: \.metadata"):
        RemoteReader(objects, saved.key).read_metadata()


@ONLY_COMPACT
def test_the_stock_metadata_is_not_needed(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """Where there is the compact form, the gigabyte is not read."""
    objects.delete(f"{saved.key}.metadata")
    assert same(reader.load_remote(RemoteReader(objects, saved.key), into(state())), state(7))


@ONLY_COMPACT
@pytest.mark.parametrize("harm", ["flipped", "short", "missing", "of another version"])
def test_of_damaged_compact_metadata_the_stock_one_is_read(
    objects: S3Store, saved: RemoteCheckpoint, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused by name; when the stock one is damaged, too, so is the checkpoint."""
    key = f"{saved.key}{manifests.BOXES}"
    data = objects.get(key)
    if harm == "flipped":
        flip(objects, key, -30)
    elif harm == "short":
        objects.put(key, data[:-1])
    elif harm == "missing":
        objects.delete(key)
    else:
        objects.put(key, data[:8] + b"\x09" + data[9:])
    assert same(reader.load_remote(RemoteReader(objects, saved.key), into(state())), state(7))
    assert re.search(r"\.metadata is read instead: .*boxes\.bin", caplog.text)
    flip(objects, f"{saved.key}.metadata", 700)
    with pytest.raises(DamagedError, match=r"\.metadata"):
        RemoteReader(objects, saved.key).read_metadata()


@ONLY_COMPACT
@pytest.mark.parametrize("damaged", [False, True])
def test_large_compact_metadata_is_read_in_part(
    objects: S3Store, saved: RemoteCheckpoint, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its head by rank 0, then the ranges that a rank needs, verified; damaged ones are the stock form's."""
    monkeypatch.setattr(boxes_reader, "WHOLE_BYTES", 0)
    source = RemoteReader(objects, saved.key)
    head = source.read_metadata()
    assert len(head.state_dict_metadata) == len(RemoteReader(objects, saved.key).read_metadata().planner_data)
    if damaged:
        flip(objects, f"{saved.key}{manifests.BOXES}", -30)
    assert same(reader.load_remote(source, into(state())), state(7))


def test_a_short_file_is_refused(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """By the range that it does not have."""
    key = f"{saved.key}__0_0.distcp"
    objects.put(key, objects.get(key)[:-3000])
    with pytest.raises(DamagedError, match=r"__0_0\.distcp"):
        reader.load_remote(RemoteReader(objects, saved.key), into(state()))


@ONLY_STOCK
@pytest.mark.parametrize("name", ["__0_0.distcp", "parts/__0_0.distcp.json", ".metadata"])
def test_a_missing_object_is_refused(objects: S3Store, saved: RemoteCheckpoint, name: str) -> None:
    """Data, digests or metadata."""
    objects.delete(f"{saved.key}{name}")
    with pytest.raises((DamagedError, CheckpointError), match=name.rpartition("/")[2]):
        reader.load_remote(RemoteReader(objects, saved.key), into(state()))


@pytest.mark.parametrize("withheld", ["__0_0.distcp", ""], ids=["one object", "all"])
def test_an_object_that_the_store_keeps_back_is_distinguished_from_a_store_that_refuses(
    objects: S3Store, saved: RemoteCheckpoint, monkeypatch: pytest.MonkeyPatch, withheld: str
) -> None:
    """Only the first speaks against the state: an older one may be read where the store gives anything."""
    refusing = False
    read, get = S3Store.read_range, S3Store.get

    def maybe(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(store: S3Store, key: str, *args: Any) -> Any:
            if refusing and key.endswith(withheld):
                raise UnavailableError(f"S3 refuses {key}.")
            return ask(store, key, *args)

        return asked

    monkeypatch.setattr(S3Store, "read_range", maybe(read))
    monkeypatch.setattr(S3Store, "get", maybe(get))
    source = RemoteReader(objects, saved.key)
    source.read_metadata()
    refusing = True
    with pytest.raises(UnavailableError, match="S3 refuses") as refused:
        reader.load_remote(source, into(state()))
    words = {"error_type": "UnavailableError", "message": str(refused.value)}
    found = last_words.match_exception(
        words | {"traceback": f"holdfast.errors.UnavailableError: {refused.value}"}
    )
    assert found is not None
    assert found.pattern.cause == ("checkpoint" if withheld else "remote_storage")


def test_digests_of_another_file_are_refused(
    objects: S3Store, saved: RemoteCheckpoint, tmp_path: Path
) -> None:
    """The manifest holds their digest."""
    dcp.save(state(8), checkpoint_id=tmp_path / "other", no_dist=True)
    other = upload(objects, tmp_path / "other", step=9)
    for name in ("__0_0.distcp", "parts/__0_0.distcp.json"):
        objects.put(f"{saved.key}{name}", objects.get(f"{other.key}{name}"))
    with pytest.raises(DamagedError, match="cannot be verified"):
        reader.load_remote(RemoteReader(objects, saved.key), into(state()))


def test_a_manifest_of_another_job_or_step_is_refused(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """A prefix that was copied or mistyped."""
    with pytest.raises(CheckpointError, match="job 'gpt', expected 'other'"):
        RemoteReader(objects, saved.key, job="other").read_metadata()
    with pytest.raises(CheckpointError, match="of step 4, expected 5"):
        RemoteReader(objects, saved.key, step=5).read_metadata()


def test_without_a_manifest_there_is_no_checkpoint(objects: S3Store) -> None:
    """An upload that never ended."""
    with pytest.raises(CheckpointError, match="no manifest"):
        RemoteReader(objects, manifests.checkpoint_key("gpt", 77, 1)).read_metadata()


class _Unknown:
    """No plain value."""


def test_objects_that_could_run_code_are_refused(objects: S3Store, tmp_path: Path) -> None:
    """With the way to allow them."""
    dcp.save({"extra": _Unknown()}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    where = upload(objects, tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"extra: .*_Unknown.*add_safe_globals"):
        reader.load_remote(RemoteReader(objects, where.key), into({"extra": None}))
    with torch.serialization.safe_globals([_Unknown]):
        loaded = reader.load_remote(RemoteReader(objects, where.key), into({"extra": None}))
    assert isinstance(loaded["extra"], _Unknown)


def test_a_key_that_was_not_saved_is_named(objects: S3Store, saved: RemoteCheckpoint) -> None:
    """The error of a state that does not fit names the missing key."""
    with pytest.raises(CheckpointError, match="extra"):
        reader.load_remote(RemoteReader(objects, saved.key), into({"extra": torch.zeros(2)}))
