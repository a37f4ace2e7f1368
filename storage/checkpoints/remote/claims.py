"""Claims on checkpoints in S3: jobs that start from one keep it from the retention until they have one of their own.

A claim is an object below the checkpoint, ``claims/<job>.json``. It is known by the store alone whether it still holds:
once the job that made it has a complete checkpoint of a later epoch, it does not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping

from holdfast.errors import CheckpointError, UnknownError
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.manifests import MANIFEST, object_key
from holdfast.storage.objects.base import ObjectInfo, ObjectStore

_FOLDER = "claims/"
_PUT_BACK_S = 2.0
"""A manifest that was deleted while its checkpoint was claimed is put back in less (:func:`.garbage.collect`)."""


def claim(store: ObjectStore, key: str, job: str, epoch: int) -> bool:
    """Keep the checkpoint with prefix ``key`` for ``job``, which had begun ``epoch`` epochs; may be repeated.

    The claim is made first, and then the manifest looked for; the retention deletes the manifest first, and then looks
    for claims: one of both always sees the other.

    Returns:
        Whether the checkpoint is there.

    Raises:
        UnavailableError: the store does not answer.
    """
    store.put(_name(key, job), json.dumps({"job": job, "epoch": epoch}).encode())
    for pause_s in (0.0, _PUT_BACK_S):
        time.sleep(pause_s)
        if store.exists(object_key(key, MANIFEST)):
            return True
    store.delete(_name(key, job))
    return False


def release(store: ObjectStore, key: str, job: str) -> None:
    """Leave the checkpoint to the retention as far as ``job`` is concerned; may be repeated.

    Raises:
        UnavailableError: the store does not answer.
    """
    store.delete(_name(key, job))


def claimed(
    store: ObjectStore, checkpoints: Iterable[str], objects: Collection[str]
) -> tuple[set[str], list[str]]:
    """Return which of the ``checkpoints`` are claimed, and claims that hold no longer.

    Args:
        store: the bucket.
        checkpoints: prefixes.
        objects: keys of all objects below them.

    Raises:
        UnavailableError: the store does not answer.
    """
    prefixes = {object_key(key, _FOLDER): key for key in checkpoints}
    kept, ended = set(), []
    for name in objects:  # once: there may be millions
        if (key := prefixes.get(name[: name.rfind("/") + 1])) is None:
            continue
        if _holds(store, name):
            kept.add(key)
        else:
            ended.append(name)
    return kept, ended


def fresh(store: ObjectStore, key: str, known: Mapping[str, ObjectInfo]) -> bool:
    """Return whether the checkpoint was claimed, or claimed again by the same job, since ``known`` was listed."""
    return any(known.get(each.key) != each for each in store.list(object_key(key, _FOLDER)))


def _holds(store: ObjectStore, name: str) -> bool:
    try:
        content = json.loads(store.get(name))
        job, epoch = str(content["job"]), int(content["epoch"])
    except UnknownError:
        return False
    except (ValueError, TypeError, KeyError):
        return True  # not ours to judge
    newest = manifests.newest_complete(store, job)
    try:
        return newest is None or manifests.read_manifest(store, newest).epoch <= epoch
    except CheckpointError:
        return True  # that job's retention was faster, or its manifest is damaged


def _name(key: str, job: str) -> str:
    return object_key(key, f"{_FOLDER}{job}.json")
