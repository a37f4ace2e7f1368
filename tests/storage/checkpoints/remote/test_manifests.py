import json

import pytest

from holdfast.clock import FakeClock
from holdfast.errors import CheckpointError
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.objects import ObjectStore


def upload(objects: ObjectStore, step: int, epoch: int = 1, job: str = "gpt", **changes: object) -> str:
    key = manifests.checkpoint_key(job, step, epoch)
    manifest = manifests.Manifest(job=job, step=step, epoch=epoch, world_size=8, saved_at=9.0, nbytes=5)
    objects.put(f"{key}__0_0.distcp", b"shard")
    objects.put(f"{key}manifest.json", json.dumps({**manifest.model_dump(), **changes}).encode())
    return key


def test_keys_follow_the_layout() -> None:
    """With or without the slash at the end of a prefix."""
    key = manifests.checkpoint_key("gpt", 40, 3)
    assert key == "gpt/checkpoints/step-0000000040-e3/"
    assert manifests.object_key(key, ".metadata") == manifests.object_key(key.rstrip("/"), ".metadata")
    assert manifests.object_key(key, ".metadata") == "gpt/checkpoints/step-0000000040-e3/.metadata"


def test_only_checkpoints_with_a_manifest_count(objects: ObjectStore) -> None:
    """Newest step first, and the later epoch of the same step before the earlier."""
    for step, epoch in ((20, 1), (100, 2), (20, 2)):
        upload(objects, step, epoch)
    upload(objects, 500, job="gpt-2")
    objects.put("gpt/checkpoints/step-0000000200-e2/__0_0.distcp", b"torn upload")
    found = manifests.list_remote(objects, "gpt")
    assert [(c.step, c.epoch) for c in found] == [(100, 2), (20, 2), (20, 1)]
    assert found[0] == RemoteCheckpoint(
        job="gpt",
        step=100,
        epoch=2,
        world_size=8,
        key=manifests.checkpoint_key("gpt", 100, 2),
        saved_at=9.0,
        nbytes=5,
    )
    assert manifests.list_remote(objects, "nobody") == []
    assert manifests.latest(objects, "nobody") is None


def test_a_suspect_checkpoint_is_kept_and_passed_over(objects: ObjectStore) -> None:
    """The first reason stands, also when a playbook marks it again."""
    upload(objects, 20)
    key = upload(objects, 40)
    newest = manifests.latest(objects, "gpt")
    assert newest is not None
    assert newest.step == 40
    marked = manifests.mark_suspect(objects, newest, "NaN at step 38", FakeClock(7.0))
    assert (marked.suspect, marked.suspect_reason) == (True, "NaN at step 38")
    assert manifests.mark_suspect(objects, newest, "other") == marked
    assert json.loads(objects.get(f"{key}suspect.json")) == {"reason": "NaN at step 38", "at": 7.0}
    assert manifests.list_remote(objects, "gpt")[0] == marked
    older = manifests.latest(objects, "gpt")
    assert older is not None
    assert older.step == 20


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b'{"why": "x"}'])
def test_a_mark_made_by_hand_counts(objects: ObjectStore, content: bytes) -> None:
    """Whatever is in it."""
    objects.put(f"{upload(objects, 40)}suspect.json", content)
    (found,) = manifests.list_remote(objects, "gpt")
    assert (found.suspect, found.suspect_reason) == (True, "marked by hand")


def test_a_manifest_that_cannot_be_read_hides_no_other(
    objects: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and an error for a reader that asks for it by name."""
    upload(objects, 20)
    torn = upload(objects, 40, world_size="many")
    future = upload(objects, 60, format=2)
    assert [c.step for c in manifests.list_remote(objects, "gpt")] == [20]
    assert "passed over" in caplog.text
    with pytest.raises(CheckpointError, match=r"manifest\.json: world_size: Input should be a valid integer"):
        manifests.read_manifest(objects, torn)
    with pytest.raises(CheckpointError, match="format 2, this Holdfast reads 1"):
        manifests.read_manifest(objects, future)
    with pytest.raises(CheckpointError, match="its upload never ended"):
        manifests.read_manifest(objects, manifests.checkpoint_key("gpt", 80, 1))


def test_fields_of_later_versions_are_passed_over(objects: ObjectStore) -> None:
    """As long as the format is the same."""
    key = upload(objects, 20, files=[{"name": "a", "nbytes": 1, "digest": "d", "new": 1}], colour="red")
    assert manifests.read_manifest(objects, key).files == (
        manifests.RemoteFile(name="a", nbytes=1, digest="d"),
    )
