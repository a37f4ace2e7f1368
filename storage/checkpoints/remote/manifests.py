"""Checkpoints in S3 according to their manifests, which are authoritative when the ledger is lost or behind.

Layout, below ``<job>/checkpoints/step-<step>-e<epoch>/``: the files of a stock
``torch.distributed.checkpoint`` directory, ``boxes.bin`` (the compact form of ``.metadata``), and
``manifest.json``, which is written last. Without it there is no checkpoint. ``suspect.json`` beside it means that
the checkpoint must not be restored, and gives the reason; ``pinned.json`` means that it must be kept.

A file that did not change since an older checkpoint is not stored again: its name, in the manifest and in
``.metadata``, is then ``/<bucket>/<key of the older object>``. Stock torch's ``FsspecReader`` joins the
checkpoint's path and that name to the name alone, and s3fs finds the object by it.
"""

from __future__ import annotations

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ConfigDict, ValidationError

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointError, UnknownError
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.format.blocks import Blocks
from holdfast.storage.objects.base import ObjectStore

FORMAT = 1
MANIFEST = "manifest.json"
SUSPECT = "suspect.json"
PINNED = "pinned.json"
METADATA = ".metadata"
BOXES = "boxes.bin"
"""The same in little room and readable in part; its numbers of files count the manifest's others, in order."""
BOXES_PART = "parts/boxes.json"
_READERS = 8
_RECENT = 8

_FOLDER = re.compile(r"/step-(\d+)-e(\d+)/$")
_log = logging.getLogger(__name__)


class RemoteFile(Frozen):
    """One file of a checkpoint."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """As ``.metadata`` calls it: a name in the checkpoint's folder, or a :func:`reference`."""
    nbytes: int
    digest: str = ""
    """xxh3_128 (hex) of its bytes."""
    part: str = ""
    """Name of the object beside it (:class:`Parts`) that has the digests of its blocks; empty: there is none."""
    blocks: str = ""
    """Digest of those block digests."""

    @property
    def plain_name(self) -> str:
        """Name in a folder of its own: differs from that of every other file of the checkpoint."""
        return self.name.rpartition("/")[2]


class ForeignFile(RemoteFile):
    """One file of a checkpoint that another program wrote: nothing records which bytes it should have."""


class PartFile(Frozen):
    """One file of a rank: a piece of the rank's part of the checkpoint."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """As :attr:`RemoteFile.name`."""
    start: int
    """Where it begins in the rank's part (the leading part of the payload of its shard)."""
    nbytes: int
    digest: str
    blocks: Blocks | None = None

    def described(self, parts: str) -> RemoteFile:
        """Return the manifest's entry, given the name of the object that has the block digests."""
        return RemoteFile(
            name=self.name,
            nbytes=self.nbytes,
            digest=self.digest,
            part=parts if self.blocks else "",
            blocks=self.blocks.digest if self.blocks else "",
        )


class Parts(Frozen):
    """Content of ``parts/<rank>.json``: what one rank contributes, in the order of its bytes."""

    model_config = ConfigDict(extra="ignore")

    files: tuple[PartFile, ...]
    replicated: tuple[int, ...] = ()
    """As the header of its shard has it."""


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


def data_files(manifest: Manifest) -> list[RemoteFile]:
    """Return the files that hold what was saved, in the manifest's order."""
    return [file for file in manifest.files if file.name not in (METADATA, BOXES)]


def checkpoints_prefix(job: str) -> str:
    """Prefix of all checkpoints of a job."""
    return f"{job}/checkpoints/"


def checkpoint_key(job: str, step: int, epoch: int) -> str:
    """Prefix of one checkpoint's objects; ends in a slash, and sorts by step."""
    return f"{checkpoints_prefix(job)}step-{step:010d}-e{epoch}/"


def object_key(checkpoint: str, name: str) -> str:
    """Key of the file ``name`` of a checkpoint, given the checkpoint's prefix; of a reference, what it refers to."""
    if name.startswith("/"):
        return name.split("/", 2)[2]
    return f"{checkpoint.rstrip('/')}/{name}"


def reference(bucket: str, key: str) -> str:
    """Name of a file that lies elsewhere in the bucket, as the object ``key``."""
    return f"/{bucket}/{key}"


def parts_name(rank: int) -> str:
    """Return the name of the object that lists what a rank contributes."""
    return f"parts/{rank}.json"


def read_blocks(store: ObjectStore, checkpoint: str, file: RemoteFile) -> Blocks | None:
    """Return the digests of the blocks of a file of the checkpoint with prefix ``checkpoint``; None: there are none.

    Raises:
        CheckpointError: they are not those that the manifest means.
        UnavailableError: the store does not answer.
    """
    if not file.part:
        return None
    where = object_key(checkpoint, file.part)
    try:
        parts = Parts.model_validate_json(store.get(where))
    except (UnknownError, ValidationError) as error:
        raise CheckpointError(
            f"{where}: cannot be read, so {file.name} cannot be verified: {error}"
        ) from error
    found = next((each.blocks for each in parts.files if each.name == file.name), None)
    if found is None or found.digest != file.blocks:
        raise CheckpointError(
            f"{where}: the block digests of {file.name} are not those that the manifest means."
        )
    return found


def read_manifest(store: ObjectStore, key: str) -> Manifest:
    """Return the manifest of the checkpoint with prefix ``key``.

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
    own = checkpoint_key(manifest.job, manifest.step, manifest.epoch)
    if own.rstrip("/") != key.rstrip("/"):
        raise CheckpointError(
            f"{where} is the manifest of job {manifest.job!r} step {manifest.step} epoch {manifest.epoch}, which "
            f"belongs to {own}: refused. Was it copied there by hand?"
        )
    return manifest


def list_remote(store: ObjectStore, job: str) -> list[RemoteCheckpoint]:
    """Return the job's complete checkpoints in S3, suspect ones included and marked, newest first.

    A manifest that cannot be read is logged and passed over: it is no reason to lose the others.

    Raises:
        UnavailableError: the store does not answer.
        UnknownError: the bucket does not exist.
    """

    def read(prefix: str) -> RemoteCheckpoint | None:
        try:
            return describe(store, prefix)
        except CheckpointError as error:
            _log.warning("checkpoint passed over: %s", error)
            return None

    # One request per thousand checkpoints, and two for each: not one per thousand objects.
    prefixes = store.folders(checkpoints_prefix(job))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as readers:
        found = [checkpoint for checkpoint in readers.map(read, prefixes) if checkpoint is not None]
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.epoch), reverse=True)


def newest_first(store: ObjectStore, job: str) -> list[str]:
    """Return the prefixes of the job's checkpoints, complete or not, by epoch and step; one request per thousand.

    Raises:
        UnavailableError: the store does not answer.
        UnknownError: the bucket does not exist.
    """
    named = [
        (match, prefix)
        for prefix in store.folders(checkpoints_prefix(job))
        if (match := _FOLDER.search(prefix))
    ]
    return [
        prefix
        for _, prefix in sorted(named, key=lambda each: (int(each[0][2]), int(each[0][1])), reverse=True)
    ]


def later_steps(store: ObjectStore, job: str, key: str) -> list[str]:
    """Return the prefixes of later steps of the same epoch as that of ``key``, complete or not, the newest first.

    Raises:
        UnavailableError: the store does not answer.
    """
    step, epoch = _by_step(key)
    found = ((_by_step(prefix), prefix) for prefix in newest_first(store, job))
    return [prefix for (later, of), prefix in found if of == epoch and later > step]


def newest_complete(store: ObjectStore, job: str) -> str | None:
    """Return the prefix of the newest checkpoint (by epoch, then step) that has a manifest, whatever its state.

    Only the newest few are searched: the caller can do without, and there may be many broken uploads.
    """
    prefixes = newest_first(store, job)[:_RECENT]
    return next((prefix for prefix in prefixes if any(store.list(object_key(prefix, MANIFEST)))), None)


def latest(store: ObjectStore, job: str) -> RemoteCheckpoint | None:
    """Return the newest checkpoint that may be restored, or None."""
    for prefix in sorted(store.folders(checkpoints_prefix(job)), key=_by_step, reverse=True):
        try:
            found = describe(store, prefix)
        except CheckpointError as error:
            _log.info("checkpoint passed over: %s", error)
            continue
        if not found.suspect:
            return found
    return None


def _by_step(prefix: str) -> tuple[int, int]:
    match = _FOLDER.search(prefix)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def mark_suspect(
    store: ObjectStore, checkpoint: RemoteCheckpoint, reason: str, clock: Clock | None = None
) -> RemoteCheckpoint:
    """Mark in S3 that a checkpoint must not be restored; nothing is deleted, and the first reason stands.

    Raises:
        UnavailableError: the store does not answer.
    """
    where = object_key(checkpoint.key, SUSPECT)
    if not store.exists(where):
        at = (clock or SystemClock()).now()
        store.put(where, json.dumps({"reason": reason, "at": at}).encode())
    return checkpoint.model_copy(update={"suspect": True, "suspect_reason": _reason(store, checkpoint.key)})


def pin(store: ObjectStore, checkpoint: RemoteCheckpoint, reason: str, clock: Clock | None = None) -> None:
    """Pin a checkpoint, so that it is kept whatever the retention rules are.

    Raises:
        UnavailableError: the store does not answer.
    """
    at = (clock or SystemClock()).now()
    store.put(object_key(checkpoint.key, PINNED), json.dumps({"reason": reason, "at": at}).encode())


def unpin(store: ObjectStore, checkpoint: RemoteCheckpoint) -> None:
    """Leave a checkpoint to the retention again; may be repeated.

    Raises:
        UnavailableError: the store does not answer.
    """
    store.delete(object_key(checkpoint.key, PINNED))


def is_pinned(store: ObjectStore, key: str) -> bool:
    """Return whether the checkpoint with prefix ``key`` is pinned."""
    return any(store.list(object_key(key, PINNED)))


def describe(store: ObjectStore, prefix: str) -> RemoteCheckpoint:
    """Return the checkpoint with prefix ``prefix``: its manifest, and whether it is suspect.

    Raises:
        CheckpointError: it has no manifest, or not one of its own that can be read.
        UnavailableError: the store does not answer.
    """
    manifest = read_manifest(store, prefix)
    # A list of one is one request; to ask for an object that is missing takes two.
    suspect = any(store.list(object_key(prefix, SUSPECT)))
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
        # The object's presence is what counts; a person who wrote it by hand may have left it empty.
        return "marked by hand"
