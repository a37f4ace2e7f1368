"""Reads a checkpoint in the object store from end to end and reports which files are not as they were saved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import xxhash

from holdfast.errors import UnknownError
from holdfast.models.base import Frozen
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.manifests import RemoteFile, object_key
from holdfast.storage.objects import ObjectStore

_AT_ONCE = 8
_CHUNK_BYTES = 1 << 20


class FileCheck(Frozen):
    """One file of a checkpoint."""

    name: str
    nbytes: int
    problem: str = ""
    """Empty when every byte is as it was saved."""


def verify(store: ObjectStore, key: str) -> list[FileCheck]:
    """Check every file of the checkpoint with prefix ``key`` against its manifest, referenced ones included.

    Raises:
        CheckpointError: there is no such checkpoint.
        UnavailableError: the store does not answer.
    """
    manifest = manifests.read_manifest(store, key)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="verify") as pool:
        return list(pool.map(lambda file: check_file(store, key, file), manifest.files))


def check_file(store: ObjectStore, key: str, file: RemoteFile) -> FileCheck:
    """Read one file in chunks, so that memory stays bounded, and compare."""
    where, digest = object_key(key, file.name), xxhash.xxh3_128()

    def found(problem: str) -> FileCheck:
        return FileCheck(name=file.name, nbytes=file.nbytes, problem=problem)

    try:
        if (nbytes := store.head(where).nbytes) != file.nbytes:
            return found(f"has {nbytes} bytes, its manifest says {file.nbytes}")
        store.read_range(where, 0, file.nbytes, _CHUNK_BYTES, digest.update)
    except UnknownError as error:
        return found(f"missing: {error}")
    if digest.hexdigest() != file.digest:
        return found(f"digest {digest.hexdigest()}, its manifest says {file.digest}")
    return found("")
