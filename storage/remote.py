"""Checkpoints in S3 as their manifests tell: what counts when the ledger is lost or behind.

Layout, below ``<job>/checkpoints/step-<step>-e<epoch>/``: the files of a stock
``torch.distributed.checkpoint`` directory, and ``manifest.json``, which is written last. Without it there is
no checkpoint. ``suspect.json`` beside it says that the checkpoint must not be restored, and why.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ConfigDict, ValidationError

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointError, UnknownError
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.objects.base import ObjectStore

FORMAT = 1
MANIFEST = "manifest.json"
SUSPECT = "suspect.json"
_READERS = 8

_log = logging.getLogger(__name__)


class RemoteFile(Frozen):
    """One file of a checkpoint."""

    model_config = ConfigDict(extra="ignore")

    name: str
    nbytes: int
    digest: str = ""


class Manifest(Frozen):
    """Content of ``manifest.json``. Fields that a later version adds are passed over."""

    model_config = ConfigDict(extra="ignore")

    format: int = FORMAT
    job: str
    step: int
    epoch: int
    world_size: int
    saved_at: float
    """Unix seconds."""
    nbytes: int
    files: tuple[RemoteFile, ...] = ()


def checkpoints_prefix(job: str) -> str:
    """Prefix of all checkpoints of a job."""
    return f"{job}/checkpoints/"


def checkpoint_key(job: str, step: int, epoch: int) -> str:
    """Prefix of one checkpoint's objects; ends in a slash, and sorts by step."""
    return f"{checkpoints_prefix(job)}step-{step:010d}-e{epoch}/"


def object_key(checkpoint: str, name: str) -> str:
    """Key of the file ``name`` of a checkpoint, given the checkpoint's prefix."""
    return f"{checkpoint.rstrip('/')}/{name}"


def read_manifest(store: ObjectStore, key: str) -> Manifest:
    """The manifest of the checkpoint with prefix ``key``.

    Raises:
        CheckpointError: there is none (an upload that never ended), or it cannot be read.
        UnavailableError: the store does not answer.
    """
    where = object_key(key, MANIFEST)
    try:
        manifest = Manifest.model_validate_json(store.get(where))
    except UnknownError as error:
        raise CheckpointError(
            f"checkpoint {key!r} has no {MANIFEST}: its upload never ended. {error}"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"{where}: {'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}. "
            "Restore another checkpoint (`holdfast checkpoints`)."
        ) from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{where} has format {manifest.format}, this Holdfast reads {FORMAT}.")
    return manifest


def list_remote(store: ObjectStore, job: str) -> list[RemoteCheckpoint]:
    """The job's complete checkpoints in S3, suspect ones included and marked, newest first.

    A manifest that cannot be read is logged and passed over: it is no reason to lose the others.

    Raises:
        UnavailableError: the store does not answer.
        UnknownError: the bucket does not exist.
    """
    keys = {found.key for found in store.list(checkpoints_prefix(job))}
    prefixes = [key.removesuffix(MANIFEST) for key in keys if key.endswith(f"/{MANIFEST}")]

    def read(prefix: str) -> RemoteCheckpoint | None:
        try:
            return _describe(store, prefix, suspect=object_key(prefix, SUSPECT) in keys)
        except CheckpointError as error:
            _log.warning("checkpoint passed over: %s", error)
            return None

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as readers:
        found = [checkpoint for checkpoint in readers.map(read, prefixes) if checkpoint is not None]
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.epoch), reverse=True)


def latest(store: ObjectStore, job: str) -> RemoteCheckpoint | None:
    """The newest checkpoint that may be restored, or None."""
    return next((found for found in list_remote(store, job) if not found.suspect), None)


def latest_step(store: ObjectStore, job: str) -> int:
    """Step of the newest checkpoint that may be restored; 0 when there is none."""
    found = latest(store, job)
    return found.step if found else 0


def mark_suspect(
    store: ObjectStore, checkpoint: RemoteCheckpoint, reason: str, clock: Clock | None = None
) -> RemoteCheckpoint:
    """Say in S3 that a checkpoint must not be restored; nothing is deleted, and the first reason stands.

    Raises:
        UnavailableError: the store does not answer.
    """
    where = object_key(checkpoint.key, SUSPECT)
    if not store.exists(where):
        at = (clock or SystemClock()).now()
        store.put(where, json.dumps({"reason": reason, "at": at}).encode())
    return checkpoint.model_copy(update={"suspect": True, "suspect_reason": _reason(store, checkpoint.key)})


def _describe(store: ObjectStore, prefix: str, suspect: bool) -> RemoteCheckpoint:
    manifest = read_manifest(store, prefix)
    return RemoteCheckpoint(
        job=manifest.job,
        step=manifest.step,
        epoch=manifest.epoch,
        world_size=manifest.world_size,
        key=prefix,
        suspect=suspect,
        suspect_reason=_reason(store, prefix) if suspect else "",
        saved_at=manifest.saved_at,
        nbytes=manifest.nbytes,
    )


def _reason(store: ObjectStore, prefix: str) -> str:
    try:
        content: Any = json.loads(store.get(object_key(prefix, SUSPECT)))
        return str(content["reason"])
    except (UnknownError, ValueError, TypeError, KeyError):
        # The object's presence is what counts; whoever wrote it by hand may have left it empty.
        return "marked by hand"
