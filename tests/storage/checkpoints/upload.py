"""Puts a checkpoint directory into a store as agents do: parts with block digests, and the manifest last."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import xxhash
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.format import boxes
from holdfast.storage.checkpoints.format.blocks import digest_blocks
from holdfast.storage.checkpoints.format.describe import ItemKind
from holdfast.storage.checkpoints.format.metadata_pickle import Table
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.manifests import Manifest, PartFile, Parts, RemoteFile, object_key
from holdfast.storage.objects.base import ObjectStore


def upload(
    store: ObjectStore,
    directory: Path,
    *,
    job: str = "gpt",
    step: int = 4,
    epoch: int = 1,
    world_size: int = 1,
    compact: bool = True,
) -> RemoteCheckpoint:
    """The checkpoint in ``directory`` as that of ``job`` at ``step``; ``compact``: with its metadata in both forms."""
    key = manifests.checkpoint_key(job, step, epoch)
    files = [_put(store, key, path) for path in sorted(directory.glob("*.distcp"))]
    metadata = (directory / ".metadata").read_bytes()
    store.put(object_key(key, ".metadata"), metadata)
    files.append(
        RemoteFile(name=".metadata", nbytes=len(metadata), digest=xxhash.xxh3_128_hexdigest(metadata))
    )
    if compact:
        files.append(_put_boxes(store, key, load_metadata(metadata), [file.name for file in files[:-1]]))
    manifest = Manifest(
        job=job,
        step=step,
        epoch=epoch,
        world_size=world_size,
        saved_at=time.time(),
        nbytes=sum(file.nbytes for file in files),
        files=tuple(files),
    )
    store.put(object_key(key, manifests.MANIFEST), manifest.model_dump_json().encode())
    return RemoteCheckpoint(key=key, **manifest.model_dump(exclude={"format", "files"}))


def _put(store: ObjectStore, key: str, path: Path) -> RemoteFile:
    data = path.read_bytes()
    store.put(object_key(key, path.name), data)
    part = PartFile(
        name=path.name,
        start=0,
        nbytes=len(data),
        digest=xxhash.xxh3_128_hexdigest(data),
        blocks=digest_blocks(data),
    )
    name = f"parts/{path.name}.json"
    store.put(object_key(key, name), Parts(files=(part,)).model_dump_json().encode())
    return part.described(name)


def _put_boxes(store: ObjectStore, key: str, metadata: Metadata, names: list[str]) -> RemoteFile:
    data = boxes.pack(table_of(metadata, names), "stock")
    store.put(object_key(key, manifests.BOXES), data)
    blocks, digest = digest_blocks(data), xxhash.xxh3_128_hexdigest(data)
    part = PartFile(name=manifests.BOXES, start=0, nbytes=len(data), digest=digest, blocks=blocks)
    store.put(object_key(key, manifests.BOXES_PART), Parts(files=(part,)).model_dump_json().encode())
    return part.described(manifests.BOXES_PART)


def table_of(metadata: Metadata, names: list[str]) -> Table:
    """The boxes of stock metadata as arrays; its files are ``names``."""
    number = {name: at for at, name in enumerate(metadata.state_dict_metadata)}
    kinds = [
        ItemKind(name, each.size, each.properties)
        if isinstance(each, TensorStorageMetadata)
        else ItemKind(name)
        for name, each in metadata.state_dict_metadata.items()
    ]
    sizes = {
        (kind.fqn, chunk.offsets): chunk.sizes
        for kind in kinds
        if isinstance(known := metadata.state_dict_metadata[kind.fqn], TensorStorageMetadata)
        for chunk in known.chunks
    }
    wide = max([1, *(len(kind.size) for kind in kinds if kind.size is not None)])
    rows = np.zeros((len(metadata.storage_data), 4), np.int64)
    found = np.zeros((2, len(rows), wide), np.int64)
    for row, (index, info) in enumerate(metadata.storage_data.items()):
        rows[row] = number[index.fqn], names.index(info.relative_path), info.offset, info.length
        if index.offset is not None:
            found[0, row, : len(index.offset)] = index.offset
            found[1, row, : len(index.offset)] = sizes[index.fqn, index.offset]
    return Table(kinds, names, metadata.planner_data, rows[:, 0], rows[:, 1], *found, rows[:, 2], rows[:, 3])
