"""Proves that a checkpoint in S3 restores: read from end to end with bounded memory, changing nothing.

Every file has the bytes that its manifest lists; every element of every tensor lies in exactly one item; every item
lies within a file of the checkpoint; every object is loaded, by the reader of a restore.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from holdfast.errors import CheckpointError
from holdfast.models.rehearsal import Proof
from holdfast.storage.checkpoints.format.overlaps import inside, overlap
from holdfast.storage.checkpoints.load.findings import Findings
from holdfast.storage.checkpoints.load.load_part import load_part
from holdfast.storage.checkpoints.load.prove_tree import is_tree, prove_tree
from holdfast.storage.checkpoints.remote import manifests, verify
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.objects.base import ObjectStore

_OBJECTS_AT_ONCE = 512


def prove_remote(store: ObjectStore, key: str, allowed: Collection[str] | None = None) -> Proof:
    """Read the checkpoint with prefix ``key``; never raises for what is wrong with it.

    Args:
        store: where it lies.
        key: its prefix.
        allowed: as :func:`~holdfast.storage.checkpoints.load.prove.prove` has it.

    Raises:
        UnavailableError: the store does not answer.
    """
    began, found = time.perf_counter(), Findings(allowed)
    items = nbytes = 0
    try:
        nbytes = _files(store, key, found)
        reader = RemoteReader(store, key, alone=True)
        metadata = reader.read_metadata()
        items = len(metadata.state_dict_metadata)
        lying = _places(metadata, _sizes(store, key), found)
        _objects(reader, metadata, found, lying)
    except CheckpointError as error:
        found.wrong("", error)
    return found.proof(items=items, nbytes=nbytes, seconds=time.perf_counter() - began)


def _files(store: ObjectStore, key: str, found: Findings) -> int:
    """Verify every byte of every file, and return the number of bytes."""
    checked = verify.verify(store, key)
    for each in checked:
        if each.problem:
            found.wrong("", f"file {each.name}: {each.problem}")
    return sum(each.nbytes for each in checked)


def _sizes(store: ObjectStore, key: str) -> dict[str, int]:
    return {file.name: file.nbytes for file in manifests.read_manifest(store, key).files}


def _places(metadata: Metadata, sizes: Mapping[str, int], found: Findings) -> set[str]:
    """Check where everything lies; return the names of items that do not lie whole in the files."""
    wrong = {name: _why_not(metadata, name, sizes) for name in metadata.state_dict_metadata}
    for name, why in wrong.items():
        if why:
            found.wrong(name, why)
    return {name for name, why in wrong.items() if why}


def _why_not(metadata: Metadata, name: str, sizes: Mapping[str, int]) -> str:
    known, indices = metadata.state_dict_metadata[name], [MetadataIndex(name)]
    if isinstance(known, TensorStorageMetadata):
        if why := why_uncovered(known):
            return why
        indices = [MetadataIndex(name, chunk.offsets) for chunk in known.chunks]
    for index in indices:
        info = (metadata.storage_data or {}).get(index)
        if info is None:
            return "missing: no file has its bytes"
        if info.offset + info.length > sizes.get(info.relative_path, -1):
            where = f"{info.relative_path} from {info.offset} to {info.offset + info.length}"
            return f"lies in {where}, outside of the checkpoint's files"
    return ""


def why_uncovered(known: TensorStorageMetadata) -> str:
    """Return why the chunks of a tensor do not make it up, each element once; empty: they do."""
    size = tuple(known.size)
    for chunk in known.chunks:
        if not inside(chunk.offsets, chunk.sizes, size):
            return f"its part at {list(chunk.offsets)} of {list(chunk.sizes)} is outside of {list(size)}"
    covered = sum(chunk.sizes.numel() for chunk in known.chunks)
    if covered != known.size.numel():
        return f"its parts have {covered} of {known.size.numel()} elements"
    boxes = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in known.chunks]
    if twice := overlap(boxes):
        return f"its parts at {list(twice[0])} and {list(twice[1])} overlap"
    return ""


def _objects(reader: RemoteReader, metadata: Metadata, found: Findings, lying: set[str]) -> None:
    names = [
        name
        for name, known in metadata.state_dict_metadata.items()
        if isinstance(known, BytesStorageMetadata) and name not in lying
    ]
    for some in (names[at : at + _OBJECTS_AT_ONCE] for at in range(0, len(names), _OBJECTS_AT_ONCE)):
        _load(reader, metadata, some, found)


def _load(reader: RemoteReader, metadata: Metadata, names: Sequence[str], found: Findings) -> None:
    """Load all objects together, and one by one only when that fails: the first that fails hides the others."""
    try:
        loaded = load_part(reader, metadata, dict.fromkeys(names))
    except CheckpointError as error:
        if len(names) == 1:
            found.of_object(names[0], error)
            return
        for name in names:
            _load(reader, metadata, [name], found)
        return
    for name in filter(is_tree, names):
        prove_tree(name, loaded[name], metadata.state_dict_metadata, found)
