"""Deletes what is not wanted of a job's checkpoints in the object store: by retention, and after broken uploads.

Nothing of a live upload is touched: everything younger than a grace period stays, and an upload is given up
in less. Nothing that a kept checkpoint refers to is touched either; when a manifest cannot be read, nothing at all
is deleted, because it is not known what that manifest refers to. Nor is anything when the store's list turns out to
be of an earlier time, as a cache or a store of several sites may give it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from holdfast import failpoint
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointError, UnavailableError, UnknownError
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.remote import claims, manifests
from holdfast.storage.checkpoints.remote.manifests import MANIFEST, PINNED, SUSPECT, Manifest, object_key
from holdfast.storage.objects import ObjectInfo, ObjectStore, Unfinished

_log = logging.getLogger(__name__)
_READERS = 8


class Collected(Frozen):
    """Checkpoints that were kept, and what was deleted."""

    kept: dict[str, str]
    """Key of each checkpoint that stays, and why."""
    dropped: tuple[str, ...] = ()
    """Keys of complete checkpoints that were deleted."""
    objects: int = 0
    """Objects deleted, garbage included."""
    nbytes: int = 0
    uploads: int = 0
    """Unfinished uploads aborted."""


class Keep(Protocol):
    """The policy (:func:`holdfast.policies.restore.retention.keep`, with a job's rules)."""

    def __call__(
        self,
        checkpoints: Sequence[RemoteCheckpoint],
        *,
        pinned: Collection[str],
        now: float,
        grace_s: float,
    ) -> dict[str, str]:
        """Return the keys of the checkpoints to keep, each with the reason."""
        ...


def collect(
    store: ObjectStore,
    job: str,
    keep: Keep,
    *,
    grace_s: float,
    clock: Clock | None = None,
    dry_run: bool = False,
) -> Collected:
    """Delete what the rules do not keep, and the rest of broken uploads. May be repeated and killed anywhere.

    The manifest of a checkpoint is deleted first: from then on the rest is garbage like any other. When the checkpoint
    turns out to be claimed in that moment, it is put back.

    Args:
        store: the bucket.
        job: the job whose checkpoints they are.
        keep: decides which checkpoints stay.
        grace_s: longer than any upload may take; younger things stay.
        clock: compared with the store's times: they may differ by much less than ``grace_s``.
        dry_run: only report what would be deleted.

    Raises:
        CheckpointError: a manifest cannot be read; nothing was deleted.
        UnavailableError: the store does not answer, or lists what it had before; nothing was deleted then.
    """
    now = (clock or SystemClock()).now()
    objects = {item.key: item for item in store.list(manifests.checkpoints_prefix(job))}
    found = _manifests(store, objects)
    checkpoints = [_described(key, manifest, objects) for key, manifest in found.items()]
    pinned = [key for key in found if object_key(key, PINNED) in objects]
    claimed, ended = claims.claimed(store, found, objects)
    kept = keep(checkpoints, pinned=pinned, now=now, grace_s=grace_s)
    kept |= dict.fromkeys(claimed - kept.keys(), "a job starts from it")
    complete = {key: _named(key, manifest) for key, manifest in found.items()}
    settled = _settled(objects.values(), now - grace_s)
    gone = [key for key in unreferenced(objects.keys(), complete, kept) if _folder(key) in settled]
    dropped = sorted(key for key in found if key not in kept and key in settled)
    torn = [
        upload
        for upload in _unfinished(store, manifests.checkpoints_prefix(job))
        if upload.active_at <= now - grace_s
    ]
    unlisted = {object_key(_folder(key), MANIFEST) for key in gone} - objects.keys()
    good = [each.key for each in checkpoints if dropped and each.key in kept and not each.suspect]
    _require_absent(store, [*unlisted, *(object_key(key, SUSPECT) for key in good)])
    if not dry_run:
        # All that was looked at takes minutes, in which a job may have begun to start from one of them.
        going = {key: _content(store, key) for key in dropped if not _wanted(store, key, objects)}
        ended = [name for name in ended if objects[name] in store.list(name)]  # not made again since
        store.delete_many([*ended, *(object_key(key, MANIFEST) for key in going)])
        failpoint.here("garbage.manifests")
        for key, content in list(going.items()):
            if _wanted(store, key, objects):
                if content is not None:
                    store.put(object_key(key, MANIFEST), content)
                del going[key]
        if late := set(dropped) - going.keys():
            kept |= dict.fromkeys(late, "pinned just now, or a job starts from it")
            dropped = [key for key in dropped if key in going]
            gone = [key for key in unreferenced(objects.keys(), complete, kept) if _folder(key) in settled]
        store.delete_many(gone)
        failpoint.here("garbage.files")
        for upload in torn:
            store.abort(upload)
    return Collected(
        kept=kept,
        dropped=tuple(dropped),
        objects=len(gone),
        nbytes=sum(objects[key].nbytes for key in gone),
        uploads=len(torn),
    )


def unreferenced(
    objects: Collection[str], complete: Mapping[str, Collection[str]], kept: Collection[str]
) -> list[str]:
    """Return those of ``objects`` that no kept checkpoint consists of or refers to.

    Args:
        objects: keys of all objects of the job's checkpoints.
        complete: for each complete checkpoint the objects that its manifest names, own and others'.
        kept: keys (prefixes) of the checkpoints to keep.
    """
    named = {key for checkpoint in kept for key in complete.get(checkpoint, ())}
    own = tuple(kept)
    return sorted(key for key in objects if key not in named and not key.startswith(own))


def _unfinished(store: ObjectStore, prefix: str) -> Sequence[Unfinished]:
    """Return the uploads that were begun; none where they cannot be listed, which takes rights of its own."""
    try:
        return store.unfinished(prefix)
    except UnavailableError as error:
        _log.warning("unfinished uploads under %s stay, with what they hold: %s", prefix, error)
        return ()


def _require_absent(store: ObjectStore, keys: Collection[str]) -> None:
    """Check that objects whose absence would have others deleted are absent, and not just left out of the list."""
    with ThreadPoolExecutor(_READERS, thread_name_prefix="absent") as readers:
        there = [key for key, found in zip(keys, readers.map(store.exists, keys), strict=True) if found]
    if there:
        raise UnavailableError(
            f"nothing is deleted: the store's list is of an earlier time than {min(there)}, which is not in it"
        )


def _content(store: ObjectStore, key: str) -> bytes | None:
    """Return a manifest as it lies there, to put it back; None: another process has deleted it."""
    try:
        return store.get(object_key(key, MANIFEST))
    except UnknownError:
        return None


def _wanted(store: ObjectStore, key: str, known: Mapping[str, ObjectInfo]) -> bool:
    """Return whether a checkpoint that was neither claimed nor pinned when ``known`` was listed is so by now."""
    return claims.fresh(store, key, known) or manifests.is_pinned(store, key)


def _manifests(store: ObjectStore, objects: Collection[str]) -> dict[str, Manifest]:
    prefixes = sorted(key.removesuffix(MANIFEST) for key in objects if key.endswith(f"/{MANIFEST}"))

    def read(prefix: str) -> Manifest:
        try:
            return manifests.read_manifest(store, prefix)
        except CheckpointError as error:
            raise CheckpointError(
                f"nothing is deleted, as it is not known which objects belong to {prefix}: {error} "
                "Delete or repair its manifest."
            ) from error

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as readers:
        return dict(zip(prefixes, readers.map(read, prefixes), strict=True))


def _described(key: str, manifest: Manifest, objects: Mapping[str, ObjectInfo]) -> RemoteCheckpoint:
    return RemoteCheckpoint(
        key=key,
        suspect=object_key(key, SUSPECT) in objects,
        **manifest.model_dump(exclude={"format", "files"}),
    )


def _named(key: str, manifest: Manifest) -> set[str]:
    """Return the keys of the objects that a manifest names, in its own folder and elsewhere."""
    return {object_key(key, file.name) for file in manifest.files}


def _settled(objects: Collection[ObjectInfo], before: float) -> set[str]:
    """Return the folders in which nothing was written since: no upload into them is under way."""
    newest: defaultdict[str, float] = defaultdict(float)
    for found in objects:
        newest[_folder(found.key)] = max(newest[_folder(found.key)], found.modified_at)
    return {folder for folder, at in newest.items() if at <= before}


def _folder(key: str) -> str:
    """Return the checkpoint's prefix that an object belongs to: ``<job>/checkpoints/<folder>/``."""
    return "/".join(key.split("/")[:3]) + "/"
