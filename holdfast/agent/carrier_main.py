"""Body of the carrier process: moves checkpoints and code between this machine's disk and the object store."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3.s3.transfer  # noqa: F401  (loaded in the fork server, so that no carrier waits for it)
import xxhash

from holdfast.errors import CheckpointError, HoldfastError, UnavailableError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.settings import Settings
from holdfast.storage import code
from holdfast.storage.objects import ObjectStore, from_settings
from holdfast.storage.remote import MANIFEST, Manifest, RemoteFile, object_key, read_manifest

_THREADS = 8
_POLL_S = 0.2
METADATA = ".metadata"


def serve(connection: Connection, settings: Settings) -> None:
    """Answer requests ``(id, operation, arguments)`` with ``(id, ok, result or (error name, message))``."""
    store = from_settings(settings)
    answering = threading.Lock()
    with ThreadPoolExecutor(_THREADS) as pool:
        while True:
            try:
                number, operation, arguments = connection.recv()
            except EOFError:
                return
            work = partial(_OPERATIONS[operation], store, **arguments)
            pool.submit(_answer, answering, connection, number, work)


def _answer(lock: threading.Lock, connection: Connection, number: int, work: Callable[[], Any]) -> None:
    try:
        answer = (number, True, work())
    except HoldfastError as error:
        answer = (number, False, (type(error).__name__, str(error)))
    except Exception as error:
        answer = (number, False, (UnavailableError.__name__, f"{type(error).__name__}: {error}"))
    with lock:
        connection.send(answer)


def checkout(store: ObjectStore, job: str, version: str, folder: str) -> None:
    """Have a code version unpacked in ``folder``."""
    code.checkout(store, job, version, Path(folder))


def put_part(store: ObjectStore, path: str, key: str, rank: int) -> int:
    """Upload one rank's part of a checkpoint, then say that it is there; returns its size in bytes."""
    digest, nbytes = _digest_of(Path(path)), os.path.getsize(path)
    with open(path, "rb") as file:
        store.put_stream(object_key(key, _file_of(rank)), file)
    part = {"nbytes": nbytes, "digest": digest}
    store.put(_part_key(key, rank), json.dumps(part).encode())
    return nbytes


def finish(
    store: ObjectStore,
    *,
    key: str,
    job: str,
    step: int,
    epoch: int,
    world_size: int,
    metadata: bytes,
    wait_s: float,
) -> RemoteCheckpoint:
    """Wait for the parts of all ranks, then write ``.metadata`` and, last, the manifest that makes it count.

    Raises:
        CheckpointError: some parts did not come within ``wait_s`` seconds.
    """
    _await_parts(store, key, world_size, wait_s)
    files = [
        RemoteFile(name=_file_of(rank), **json.loads(store.get(_part_key(key, rank))))
        for rank in range(world_size)
    ]
    store.put(object_key(key, METADATA), metadata)
    files.append(RemoteFile(name=METADATA, nbytes=len(metadata), digest=xxhash.xxh3_128_hexdigest(metadata)))
    manifest = Manifest(
        job=job,
        step=step,
        epoch=epoch,
        world_size=world_size,
        saved_at=time.time(),
        nbytes=sum(file.nbytes for file in files),
        files=tuple(files),
    )
    store.put(object_key(key, MANIFEST), manifest.model_dump_json().encode())
    return RemoteCheckpoint(key=key, **manifest.model_dump(exclude={"format", "files"}))


def download(store: ObjectStore, key: str, folder: str) -> None:
    """Have a whole checkpoint in ``folder``, every file checked; the manifest appears last.

    Raises:
        CheckpointError: there is no manifest, or a file is not what the manifest says.
    """
    target = Path(folder)
    if (target / MANIFEST).exists():
        return
    manifest = read_manifest(store, key)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(partial(_fetch, store, key, target), manifest.files))
    (target / MANIFEST).write_text(manifest.model_dump_json())


def _fetch(store: ObjectStore, key: str, target: Path, file: RemoteFile) -> None:
    path = target / Path(file.name).name
    nbytes = store.fetch(object_key(key, file.name), path)
    digest = _digest_of(path)
    if (nbytes, digest) != (file.nbytes, file.digest):
        raise CheckpointError(
            f"checkpoint {key}: {file.name} has {nbytes} bytes, digest {digest}; its manifest says "
            f"{file.nbytes}, {file.digest}. Restore an older one."
        )


def _await_parts(store: ObjectStore, key: str, world_size: int, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    wanted = {_part_key(key, rank) for rank in range(world_size)}
    while missing := wanted - {found.key for found in store.list(object_key(key, "parts/"))}:
        if time.monotonic() > deadline:
            raise CheckpointError(f"checkpoint {key}: {len(missing)} of {world_size} parts never came")
        time.sleep(_POLL_S)


def _file_of(rank: int) -> str:
    return f"__{rank}_0.distcp"  # the name that a stock writer gives


def _part_key(key: str, rank: int) -> str:
    return object_key(key, f"parts/{rank}.json")


def _digest_of(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


_OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation for operation in (checkout, put_part, finish, download)
}
