"""Claims on checkpoints in S3: jobs that start from one keep it from the retention until they have one of their own.

A claim is an object below the checkpoint, ``claims/<job>.json``. It is known by the store alone whether it still holds:
once the job that made it has a complete checkpoint of a later epoch, it does not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from holdfast.errors import UnknownError
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.checkpoints.remote.manifests import MANIFEST, object_key
from holdfast.storage.objects.base import ObjectStore

_FOLDER = "claims/"


def claim(store: ObjectStore, key: str, job: str, epoch: int) -> bool:
    """Keep the checkpoint with prefix ``key`` for ``job``, which had begun ``epoch`` epochs; may be repeated.

    Returns:
        Whether the checkpoint is there.

    Raises:
        UnavailableError: the store does not answer.
    """
    store.put(_name(key, job), json.dumps({"job": job, "epoch": epoch}).encode())
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


def fresh(store: ObjectStore, key: str, known: Collection[str]) -> bool:
    """Return whether the checkpoint was claimed since ``known`` was listed."""
    return any(each.key not in known for each in store.list(object_key(key, _FOLDER)))


def _holds(store: ObjectStore, name: str) -> bool:
    try:
        content = json.loads(store.get(name))
        job, epoch = str(content["job"]), int(content["epoch"])
    except UnknownError:
        return False
    except (ValueError, TypeError, KeyError):
        return True  # not ours to judge
    newest = manifests.newest_complete(store, job)
    return newest is None or manifests.read_manifest(store, newest).epoch <= epoch


def _name(key: str, job: str) -> str:
    return object_key(key, f"{_FOLDER}{job}.json")
