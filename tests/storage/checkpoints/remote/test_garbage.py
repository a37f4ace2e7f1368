"""Retention and garbage in the store: what goes, what stays, and that nothing alive is touched."""

from __future__ import annotations

import time
from functools import partial

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import CheckpointError, UnavailableError
from holdfast.models.checkpoint import RemoteCheckpoint, Retention
from holdfast.policies.restore.retention import keep
from holdfast.storage.checkpoints.remote import claims, manifests
from holdfast.storage.checkpoints.remote.garbage import Collected, collect, unreferenced
from holdfast.storage.checkpoints.remote.manifests import Manifest, RemoteFile, object_key
from holdfast.storage.objects import Unfinished
from holdfast.storage.objects.s3 import S3Store

GRACE_S = 1000.0
RULES = Retention(keep_last=2)


def complete(store: S3Store, step: int, refers_to: str = "", job: str = "gpt") -> RemoteCheckpoint:
    """A checkpoint of two files, one of which may lie elsewhere."""
    key = manifests.checkpoint_key(job, step, 1)
    names = ["__0_0.distcp", manifests.reference(store.bucket, refers_to) if refers_to else "__0_1.distcp"]
    for name in names:
        if not name.startswith("/"):
            store.put(object_key(key, name), b"content")
    manifest = Manifest(
        job=job,
        step=step,
        epoch=1,
        world_size=1,
        saved_at=float(step),
        nbytes=14,
        files=tuple(RemoteFile(name=name, nbytes=7) for name in names),
    )
    store.put(object_key(key, manifests.MANIFEST), manifest.model_dump_json().encode())
    return RemoteCheckpoint(key=key, **manifest.model_dump(exclude={"format", "files"}))


def keys(store: S3Store) -> set[str]:
    return {found.key for found in store.list("")}


def later(store: S3Store, job: str = "gpt", rules: Retention = RULES, dry_run: bool = False) -> Collected:
    """Collected up when everything in the store is older than the grace period."""
    clock = FakeClock(time.time() + 2 * GRACE_S)
    return collect(store, job, partial(keep, rules=rules), grace_s=GRACE_S, clock=clock, dry_run=dry_run)


def test_old_checkpoints_go_whole(store: S3Store) -> None:
    """The last two and the pinned one stay; another job's are none of its business."""
    made = {step: complete(store, step) for step in (10, 20, 30, 40)}
    other = complete(store, 5, job="gpt-2")
    manifests.pin(store, made[10], "the paper's model")
    would = later(store, dry_run=True)
    assert len(manifests.list_remote(store, "gpt")) == 4
    done = later(store)
    assert done == would
    assert done.dropped == (made[20].key,)
    assert (done.objects, done.kept[made[10].key]) == (3, "pinned")
    assert [found.step for found in manifests.list_remote(store, "gpt")] == [40, 30, 10]
    assert manifests.list_remote(store, "gpt-2") == [other]
    assert not [key for key in keys(store) if key.startswith(made[20].key)]
    assert later(store).objects == 0
    manifests.unpin(store, made[10])
    assert later(store).dropped == (made[10].key,)


def test_what_a_job_starts_from_stays_until_it_has_a_checkpoint_of_its_own(store: S3Store) -> None:
    """An older submission's checkpoint of that job does not count, and a claim may be taken back."""
    made = {step: complete(store, step) for step in (10, 20, 30, 40)}
    complete(store, 5, job="tuned")
    assert claims.claim(store, made[10].key, "tuned", 1)
    assert claims.claim(store, made[20].key, "other", 0)
    claims.release(store, made[20].key, "other")
    done = later(store)
    assert (done.dropped, done.kept[made[10].key]) == ((made[20].key,), "a job starts from it")
    manifest = manifests.read_manifest(store, manifests.checkpoint_key("tuned", 5, 1))
    own = manifest.model_copy(update={"epoch": 2, "files": ()})
    where = object_key(manifests.checkpoint_key("tuned", 5, 2), manifests.MANIFEST)
    store.put(where, own.model_dump_json().encode())
    assert later(store).dropped == (made[10].key,)
    assert not [key for key in keys(store) if key.startswith(made[10].key)]
    assert not claims.claim(store, made[10].key, "tuned", 2)


@pytest.mark.parametrize("before", [True, False])
def test_a_claim_that_is_made_while_the_manifest_goes_is_seen(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """By the retention, which puts the manifest back as it was; or by the claimer, which finds none."""
    monkeypatch.setattr(claims, "_PUT_BACK_S", 0.0)
    made = {step: complete(store, step) for step in (10, 20, 30)}
    where = object_key(made[10].key, manifests.MANIFEST)
    content, everything = store.get(where), keys(store)
    claimed: list[bool] = []
    real = store.delete_many

    def deleted(found: list[str]) -> None:
        found = list(found)
        if where not in found:
            real(found)
            return
        if before:
            claimed.append(claims.claim(store, made[10].key, "tuned", 1))
            real(found)
        else:
            real(found)
            claimed.append(claims.claim(store, made[10].key, "tuned", 1))

    monkeypatch.setattr(store, "delete_many", deleted)
    done = later(store)
    assert set(claimed) == {before}
    assert done.dropped == (() if before else (made[10].key,))
    if before:
        assert store.get(where) == content
        assert everything < keys(store)
    else:
        assert not [key for key in keys(store) if key.startswith(made[10].key)]


def test_checkpoints_go_where_unfinished_uploads_cannot_be_listed(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes more rights than to write, read, list and delete objects; retention needs no more than these."""

    def refused(_: str) -> tuple[Unfinished, ...]:
        raise UnavailableError("S3 refuses our credentials")

    made = {step: complete(store, step) for step in (10, 20, 30)}
    monkeypatch.setattr(store, "unfinished", refused)
    done = later(store)
    assert (done.dropped, done.uploads) == ((made[10].key,), 0)
    assert not [key for key in keys(store) if key.startswith(made[10].key)]


def test_what_a_kept_checkpoint_refers_to_stays(store: S3Store) -> None:
    """Until no checkpoint refers to it any more."""
    first = complete(store, 10)
    frozen = object_key(first.key, "__0_1.distcp")
    for step in (20, 30):
        complete(store, step, refers_to=frozen)
    assert later(store).dropped == (first.key,)
    assert {key for key in keys(store) if key.startswith(first.key)} == {frozen}
    assert later(store).objects == 0
    for step in (40, 50):
        complete(store, step)
    later(store)
    assert frozen not in keys(store)


def test_garbage_goes_when_it_is_old_enough(store: S3Store) -> None:
    """Objects without a manifest and unfinished uploads, but never those of an upload that may be alive."""
    kept = complete(store, 10)
    torn = manifests.checkpoint_key("gpt", 20, 1)
    store.put(object_key(torn, "__0_0.distcp"), b"torn")
    client = store._client()
    for job in ("gpt", "gpt-2"):
        key = object_key(manifests.checkpoint_key(job, 30, 1), "__0_0.distcp")
        upload = client.create_multipart_upload(Bucket=store.bucket, Key=key)["UploadId"]
        client.upload_part(Bucket=store.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * (5 << 20))
    young = collect(store, "gpt", partial(keep, rules=RULES), grace_s=GRACE_S)
    assert (young.objects, young.uploads, len(store.unfinished(""))) == (0, 0, 2)
    done = later(store)
    assert (done.objects, done.uploads, done.nbytes) == (1, 1, 4)
    assert [found.key.split("/")[0] for found in store.unfinished("")] == ["gpt-2"]
    assert all(key.startswith(kept.key) for key in keys(store))


def test_a_live_upload_keeps_its_first_objects(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest object is young, so the old ones are not garbage yet."""
    folder = manifests.checkpoint_key("gpt", 20, 1)
    store.put(object_key(folder, "__0_0.distcp"), b"early")
    store.put(object_key(folder, "__0_1.distcp"), b"just now")
    listed = {found.key: found for found in store.list("")}
    early = object_key(folder, "__0_0.distcp")
    listed[early] = listed[early].model_copy(update={"modified_at": 0.0})
    monkeypatch.setattr(store, "list", lambda _prefix: iter(listed.values()))
    assert collect(store, "gpt", partial(keep, rules=RULES), grace_s=GRACE_S).objects == 0


def test_nothing_goes_while_a_manifest_cannot_be_read(store: S3Store) -> None:
    """It may refer to anything."""
    for step in (10, 20, 30):
        complete(store, step)
    store.put(object_key(manifests.checkpoint_key("gpt", 40, 1), manifests.MANIFEST), b'{"format": 99}')
    before = keys(store)
    with pytest.raises(CheckpointError, match=r"nothing is deleted.*step-0000000040-e1"):
        later(store)
    assert keys(store) == before


@pytest.mark.parametrize("left_out", [manifests.MANIFEST, manifests.SUSPECT])
def test_nothing_goes_by_a_list_of_an_earlier_time(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """A checkpoint whose upload was under way then is complete by now, and one that was good is suspect."""
    made = {step: complete(store, step) for step in (10, 20, 30)}
    manifests.mark_suspect(store, made[30], "NaN")
    before, newest = keys(store), object_key(made[30].key, left_out)
    real = store.list
    monkeypatch.setattr(store, "list", lambda prefix: (each for each in real(prefix) if each.key != newest))
    with pytest.raises(UnavailableError, match=f"nothing is deleted.*step-0000000030-e1/{left_out}"):
        later(store)
    monkeypatch.undo()
    assert keys(store) == before


def test_killed_half_way_it_goes_on(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the manifest goes: what is left of a checkpoint then is garbage, never a torn checkpoint."""
    for step in (10, 20, 30):
        complete(store, step)
    real, calls = store.delete_many, []

    def killed(found: list[str]) -> None:
        calls.append(list(found))
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(calls[-1])

    monkeypatch.setattr(store, "delete_many", killed)
    with pytest.raises(KeyboardInterrupt):
        later(store)
    monkeypatch.undo()
    assert [found.step for found in manifests.list_remote(store, "gpt")] == [30, 20]
    assert later(store).objects == 2
    assert len(keys(store)) == 6


def test_files_that_a_kept_checkpoint_refers_to_stay() -> None:
    """Of a checkpoint that goes, the rest goes."""
    complete = {
        "a/": ["a/frozen", "a/head", "a/manifest.json"],
        "b/": ["a/frozen", "b/head", "b/manifest.json"],
    }
    objects = [
        "a/frozen",
        "a/head",
        "a/manifest.json",
        "a/parts/0.json",
        "b/head",
        "b/manifest.json",
        "b/extra",
        "c/x",
    ]
    assert unreferenced(objects, complete, {"b/"}) == ["a/head", "a/manifest.json", "a/parts/0.json", "c/x"]
    assert unreferenced(objects, complete, {"a/", "b/"}) == ["c/x"]
