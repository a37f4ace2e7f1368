"""Body of the carrier process: moves checkpoints to the object store and code from it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3.s3.transfer  # noqa: F401  (loaded in the fork server, so that no carrier waits for it)

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.models.checkpoint import RemoteCheckpoint, Retention
from holdfast.policies.restore import retention
from holdfast.settings import Settings
from holdfast.storage.checkpoints.remote import garbage, publish
from holdfast.storage.checkpoints.remote.garbage import Collected
from holdfast.storage.checkpoints.remote.publish import Uploaded
from holdfast.storage.code import versions
from holdfast.storage.objects import ObjectStore, from_settings

_THREADS = 8
_THREADS_UPLOADS = 32
_URGENT = frozenset({"checkout"})


def serve(connection: Connection, settings: Settings) -> None:
    """Answer requests ``(id, operation, arguments)`` with ``(id, ok, result or (error name, message))``."""
    store = from_settings(settings)
    answering = threading.Lock()
    # What a start waits for never queues behind uploads.
    with ThreadPoolExecutor(_THREADS) as urgent, ThreadPoolExecutor(_THREADS_UPLOADS) as beside:
        while True:
            try:
                number, operation, arguments = connection.recv()
            except EOFError:
                return
            work = partial(_OPERATIONS[operation], store, **arguments)
            pool = urgent if operation in _URGENT else beside
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
    versions.checkout(store, job, version, Path(folder))


def put_part(store: ObjectStore, path: str, key: str, object_nbytes: int, within_s: float) -> Uploaded:
    """Upload one rank's part of a checkpoint from its shard file."""
    return publish.put_rank(store, Path(path), key, object_nbytes=object_nbytes, within_s=within_s)


def finish(store: ObjectStore, **checkpoint: Any) -> RemoteCheckpoint:
    """Wait for all ranks' parts, then make the checkpoint count."""
    return publish.finish(store, **checkpoint)


def collect_garbage(store: ObjectStore, job: str, rules: Retention, grace_s: float) -> Collected:
    """Delete what is not to be kept of a job's checkpoints, and the garbage of broken uploads."""
    return garbage.collect(store, job, partial(retention.keep, rules=rules), grace_s=grace_s)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation for operation in (checkout, put_part, finish, collect_garbage)
}
