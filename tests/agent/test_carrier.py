from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from holdfast.agent import carrier_main
from holdfast.agent.uploads import copy_owned
from holdfast.errors import CheckpointError
from holdfast.storage import remote
from holdfast.storage.checkpoints import buffers
from holdfast.storage.objects import ObjectStore
from holdfast.storage.objects.s3 import S3Store
from tests.agent.shards import META, write_shard

KEY = remote.checkpoint_key("toy", 20, 2)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = ThreadedMotoServer(port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def store(server: str) -> ObjectStore:
    made = S3Store(endpoint=server, bucket="carrier", access_key="a", secret_key="b")
    made.ensure_bucket()
    for found in list(made.list("")):
        made.delete(found.key)
    return made


def put_parts(store: ObjectStore, folder: Path, ranks: int = 2) -> None:
    for rank in range(ranks):
        path = folder / f"part{rank}"
        path.write_bytes(b"part of rank %d" % rank)
        assert carrier_main.put_part(store, str(path), KEY, rank) == path.stat().st_size


def finish(store: ObjectStore, wait_s: float = 5.0) -> remote.RemoteCheckpoint:
    return carrier_main.finish(
        store, key=KEY, job="toy", step=20, epoch=2, world_size=2, metadata=b"meta", wait_s=wait_s
    )


def test_a_checkpoint_travels_there_and_back(store: ObjectStore, tmp_path: Path) -> None:
    """Uploaded by two ranks, found by its manifest, downloaded with every byte."""
    put_parts(store, tmp_path)
    done = finish(store)
    assert remote.list_remote(store, "toy") == [done]
    carrier_main.download(store, KEY, str(tmp_path / "back"))
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert names == {"__0_0.distcp", "__1_0.distcp", ".metadata", "manifest.json"}
    assert (tmp_path / "back" / "__1_0.distcp").read_bytes() == b"part of rank 1"


def test_without_all_parts_there_is_no_manifest(store: ObjectStore, tmp_path: Path) -> None:
    """A rank that never came leaves garbage, not a checkpoint."""
    put_parts(store, tmp_path, ranks=1)
    with pytest.raises(CheckpointError, match="1 of 2 parts"):
        finish(store, wait_s=0.0)
    assert remote.list_remote(store, "toy") == []
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        carrier_main.download(store, KEY, str(tmp_path / "back"))


def test_a_damaged_object_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    """The digest in the manifest is checked, and nothing looks complete afterwards."""
    put_parts(store, tmp_path)
    finish(store)
    store.put(f"{KEY}__0_0.distcp", b"part of rank 8")
    with pytest.raises(CheckpointError, match="its manifest says"):
        carrier_main.download(store, KEY, str(tmp_path / "back"))
    assert not (tmp_path / "back" / "manifest.json").exists()


def test_the_owned_part_is_the_stock_file(tmp_path: Path) -> None:
    """Exactly the leading part of the payload goes to the store."""
    path = write_shard(tmp_path / "own", step=20, payload=b"owned and the rest", owned=5)
    copy_owned(path, 20, tmp_path / "staged" / "part")
    assert (tmp_path / "staged" / "part").read_bytes() == b"owned"
    assert path.read_bytes()[buffers.HEADER_BYTES :].startswith(META)


def test_an_overwritten_slot_is_not_uploaded(tmp_path: Path) -> None:
    """The slot holds a later step by now: this one is skipped."""
    path = write_shard(tmp_path / "own", step=21)
    with pytest.raises(CheckpointError, match="no longer holds step 20"):
        copy_owned(path, 20, tmp_path / "part")


def test_parts_say_their_size_and_digest(store: ObjectStore, tmp_path: Path, server: str) -> None:
    """As the layout promises, readable by any S3 client."""
    put_parts(store, tmp_path, ranks=1)
    client = boto3.client(
        "s3", endpoint_url=server, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    part = json.loads(client.get_object(Bucket="carrier", Key=f"{KEY}parts/0.json")["Body"].read())
    assert part["nbytes"] == len(b"part of rank 0")
    assert len(part["digest"]) == 32
