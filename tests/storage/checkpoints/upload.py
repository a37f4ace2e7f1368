"""Puts a checkpoint directory into a store as agents do: parts with block digests, and the manifest last."""

from __future__ import annotations

import time
from pathlib import Path

import xxhash

from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage import remote
from holdfast.storage.checkpoints.blocks import digest_blocks
from holdfast.storage.objects.base import ObjectStore
from holdfast.storage.remote import Manifest, Part, Parts, RemoteFile, object_key


def upload(
    store: ObjectStore,
    directory: Path,
    *,
    job: str = "gpt",
    step: int = 4,
    epoch: int = 1,
    world_size: int = 1,
) -> RemoteCheckpoint:
    """The checkpoint in ``directory`` as that of ``job`` at ``step``."""
    key = remote.checkpoint_key(job, step, epoch)
    files = [_put(store, key, path) for path in sorted(directory.glob("*.distcp"))]
    metadata = (directory / ".metadata").read_bytes()
    store.put(object_key(key, ".metadata"), metadata)
    files.append(
        RemoteFile(name=".metadata", nbytes=len(metadata), digest=xxhash.xxh3_128_hexdigest(metadata))
    )
    manifest = Manifest(
        job=job,
        step=step,
        epoch=epoch,
        world_size=world_size,
        saved_at=time.time(),
        nbytes=sum(file.nbytes for file in files),
        files=tuple(files),
    )
    store.put(object_key(key, remote.MANIFEST), manifest.model_dump_json().encode())
    return RemoteCheckpoint(key=key, **manifest.model_dump(exclude={"format", "files"}))


def _put(store: ObjectStore, key: str, path: Path) -> RemoteFile:
    data = path.read_bytes()
    store.put(object_key(key, path.name), data)
    part = Part(
        name=path.name,
        start=0,
        nbytes=len(data),
        digest=xxhash.xxh3_128_hexdigest(data),
        blocks=digest_blocks(data),
    )
    name = f"parts/{path.name}.json"
    store.put(object_key(key, name), Parts(files=(part,)).model_dump_json().encode())
    return part.described(name)
