"""A checkpoint in S3 without Holdfast: loaded by stock torch where it lies, or taken out; and verified whole."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageReader, load

from holdfast.errors import CheckpointError, DamagedError, RefusedError, SettingsError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.remote import export, manifests
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.checkpoints.remote.verify import verify
from holdfast.storage.objects.s3 import S3Store
from tests.storage.checkpoints.remote.test_publish import Rank, state
from tests.storage.conftest import ACCESS_KEY, SECRET_KEY

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]


@pytest.fixture
def store(rclone_endpoint: str, tmp_path: Path) -> S3Store:
    """A bucket of rclone's."""
    made = S3Store(
        endpoint=rclone_endpoint,
        bucket=f"export-{uuid.uuid4().hex}",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
    )
    made.ensure_bucket()
    return made


@pytest.fixture
def saved(store: S3Store, tmp_path: Path) -> RemoteCheckpoint:
    """The second of two checkpoints, as agents upload them: most of its files are the first one's."""
    rank = Rank(tmp_path / "shards")
    rank.publish(store, 10)
    _, checkpoint = rank.publish(store, 20)
    names = [file.name for file in manifests.read_manifest(store, checkpoint.key).files]
    assert any(name.startswith("/") for name in names), "it refers to files of the first one"
    return checkpoint


def flip(store: S3Store, key: str) -> str:
    """Change one byte of a data file; returns its name."""
    name = next(file.name for file in manifests.read_manifest(store, key).files if file.name.startswith("/"))
    where = manifests.object_key(key, name)
    data = bytearray(store.get(where))
    data[len(data) // 2] ^= 1
    store.put(where, bytes(data))
    return name


@pytest.mark.e2e
def test_stock_torch_loads_it_from_s3(store: S3Store, saved: RemoteCheckpoint, tmp_path: Path) -> None:
    """``dcp.load`` through fsspec, in a process that never imports Holdfast; referenced files included."""
    out, script = tmp_path / "out.pt", Path(__file__).with_name("stock_s3_load.py")
    where = [f"s3://{store.bucket}/{saved.key}", store.endpoint, ACCESS_KEY, SECRET_KEY]
    done = subprocess.run(
        [sys.executable, "-I", str(script), *where, str(out)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded, wanted = torch.load(out), state(20)
    assert len(loaded) == len(wanted["model"]) + 1
    assert all(torch.equal(loaded[f"model.{name}"], each) for name, each in wanted["model"].items())
    assert loaded["loader.position"] == 20


def test_our_reader_takes_files_of_older_checkpoints(store: S3Store, saved: RemoteCheckpoint) -> None:
    """They are verified like all others."""
    source = RemoteReader(store, saved.key)
    loaded = reader.load_remote(source, lambda _: state(0))
    assert all(torch.equal(loaded["model"][name], each) for name, each in state(20)["model"].items())
    name = flip(store, saved.key)
    with pytest.raises(DamagedError, match=name):
        reader.load_remote(RemoteReader(store, saved.key), lambda _: state(0))


def test_export_to_a_stock_directory(store: S3Store, saved: RemoteCheckpoint, tmp_path: Path) -> None:
    """It stands alone: no reference is left, and stock torch loads it."""
    target = tmp_path / "out" / "ckpt"
    nbytes = export.to_directory(store, saved.key, target)
    assert nbytes == sum(path.stat().st_size for path in target.iterdir())
    loaded = state(0)
    load(loaded, storage_reader=FileSystemReader(target), no_dist=True)
    assert all(torch.equal(loaded["model"][name], each) for name, each in state(20)["model"].items())
    with pytest.raises(RefusedError, match="exists"):
        export.to_directory(store, saved.key, target)


def test_export_to_safetensors(store: S3Store, saved: RemoteCheckpoint, tmp_path: Path) -> None:
    """The model under its own names, readable by safetensors and by torch's reader."""
    target = tmp_path / "hf"
    assert export.to_safetensors(store, saved.key, target) == len(state(20)["model"])
    (file,) = target.glob("*.safetensors")
    found, wanted = load_file(file), state(20)["model"]
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    into = {name: torch.zeros_like(each) for name, each in wanted.items()}
    load(into, storage_reader=HuggingFaceStorageReader(str(target)), no_dist=True)
    assert all(torch.equal(into[name], wanted[name]) for name in wanted)


def test_export_of_a_part_that_is_not_there_names_those_that_are(
    store: S3Store, saved: RemoteCheckpoint, tmp_path: Path
) -> None:
    """And makes nothing."""
    with pytest.raises((SettingsError, CheckpointError), match=r"part = 'weights'.*loader, model"):
        export.to_safetensors(store, saved.key, tmp_path / "hf", part="weights")
    assert not (tmp_path / "hf").exists()


def test_a_damaged_file_is_not_exported(store: S3Store, saved: RemoteCheckpoint, tmp_path: Path) -> None:
    """The folder does not appear."""
    name = flip(store, saved.key)
    for make in (export.to_directory, export.to_safetensors):
        with pytest.raises(DamagedError, match=name):
            make(store, saved.key, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_verify_names_what_is_damaged(store: S3Store, saved: RemoteCheckpoint) -> None:
    """A flipped byte, a short file and a missing one; the others are whole."""
    assert not [each for each in verify(store, saved.key) if each.problem]
    flipped = flip(store, saved.key)
    own = [f for f in manifests.read_manifest(store, saved.key).files if f.name.endswith(".distcp")]
    short, gone = [file.name for file in own if file.name != flipped][:2]
    store.put(manifests.object_key(saved.key, short), b"short")
    store.delete(manifests.object_key(saved.key, gone))
    problems = {each.name: each.problem for each in verify(store, saved.key) if each.problem}
    assert problems.keys() == {flipped, short, gone}
    assert "digest" in problems[flipped]
    assert "has 5 bytes" in problems[short]
    assert "missing" in problems[gone]
