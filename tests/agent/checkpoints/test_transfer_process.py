from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from holdfast.agent.checkpoints import transfer_main
from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.remote import export, manifests
from holdfast.storage.objects import ObjectStore
from holdfast.storage.objects.s3 import S3Store
from tests.agent.shards import write_shard

KEY = manifests.checkpoint_key("toy", 20, 2)


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


def put_parts(store: ObjectStore, folder: Path, ranks: int = 2, **changes: Any) -> None:
    for rank in range(ranks):
        part = b"part of rank %d" % rank
        path = write_shard(folder, rank, 20, 2, payload=part + b" and more", owned=len(part), **changes)
        sent = transfer_main.put_part(store, str(path), KEY, object_nbytes=1 << 20, within_s=30.0)
        assert (sent.nbytes, sent.sent_nbytes) == (len(part), len(part))


def finish(store: ObjectStore, wait_s: float = 5.0) -> manifests.RemoteCheckpoint:
    return transfer_main.finish(
        store, key=KEY, job="toy", step=20, epoch=2, world_size=2, metadata=b"meta", wait_s=wait_s
    )


def test_a_checkpoint_travels_there_and_back(store: ObjectStore, tmp_path: Path) -> None:
    """Uploaded by two ranks, found by its manifest, downloaded with every byte."""
    put_parts(store, tmp_path)
    done = finish(store)
    assert manifests.list_remote(store, "toy") == [done]
    export.to_directory(store, KEY, tmp_path / "back")
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert names == {"__0_0.distcp", "__1_0.distcp", ".metadata"}
    assert (tmp_path / "back" / "__1_0.distcp").read_bytes() == b"part of rank 1"


def test_without_all_parts_there_is_no_manifest(store: ObjectStore, tmp_path: Path) -> None:
    """A rank that never came leaves garbage, not a checkpoint."""
    put_parts(store, tmp_path, ranks=1)
    with pytest.raises(CheckpointError, match="1 of 2 parts"):
        finish(store, wait_s=0.0)
    assert manifests.list_remote(store, "toy") == []
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        export.to_directory(store, KEY, tmp_path / "back")


def test_a_damaged_object_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    """The digest in the manifest is checked, and nothing looks complete afterwards."""
    put_parts(store, tmp_path)
    finish(store)
    store.put(f"{KEY}__0_0.distcp", b"part of rank 8")
    with pytest.raises(CheckpointError, match="its manifest says"):
        export.to_directory(store, KEY, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_shard_of_another_step_is_not_uploaded(store: ObjectStore, tmp_path: Path) -> None:
    """Nor one of another job: the header names its job and step."""
    for changes in ({"step": 21}, {"epoch": 3}, {"job": "other"}):
        fields = {"step": 20, "epoch": 2, **changes}
        path = write_shard(tmp_path / str(changes), 0, **fields)
        with pytest.raises(CheckpointError, match=f"no part of {KEY}"):
            transfer_main.put_part(store, str(path), KEY, object_nbytes=1, within_s=30.0)
    assert list(store.list("")) == []


def test_parts_say_their_size_and_digest(store: ObjectStore, tmp_path: Path, server: str) -> None:
    """As the layout promises, readable by any S3 client."""
    put_parts(store, tmp_path, ranks=1)
    client = boto3.client(
        "s3", endpoint_url=server, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    listed = json.loads(client.get_object(Bucket="carrier", Key=f"{KEY}parts/0.json")["Body"].read())
    (part,) = listed["files"]
    assert part["name"] == "__0_0.distcp"
    assert part["nbytes"] == len(b"part of rank 0")
    assert len(part["digest"]) == 32
