"""Requirements of every object store, against independent implementations of S3, and further ones of S3."""

from __future__ import annotations

import time

import pytest

from holdfast.errors import UnavailableError, UnknownError
from holdfast.storage.objects import ObjectStore, s3
from holdfast.storage.objects.s3 import S3Store
from holdfast.testing.store_conformance import MIB, StoreConformance
from tests.storage.conftest import MakeStore


class TestS3(StoreConformance):
    """As ``store``, the fixture of the storage tests."""

    no_bucket = r"has no bucket 'not-created': create it, or point HOLDFAST"

    @pytest.fixture
    def nowhere(self, make_store: MakeStore) -> S3Store:
        return make_store(bucket="not-created")

    def test_a_missing_bucket_has_no_unfinished_uploads_either(self, nowhere: S3Store) -> None:
        """Some servers answer as if there were none."""
        with pytest.raises(UnknownError, match=self.no_bucket):
            nowhere.unfinished("")

    def test_the_bucket_is_made_once(self, make_store: MakeStore) -> None:
        """Making it again keeps what is in it."""
        store = make_store()
        store.ensure_bucket()
        store.put("k", b"kept")
        store.ensure_bucket()
        assert store.get("k") == b"kept"

    def test_wrong_credentials_are_named(self, make_store: MakeStore, rclone_endpoint: str) -> None:
        """With the settings to check; the secret stays out of the message."""
        wrong = make_store(secret_key="wrong-one")
        if wrong.endpoint != rclone_endpoint:
            pytest.skip("moto takes any credentials")
        for ask in (wrong.ensure_bucket, lambda: wrong.get("k"), lambda: wrong.exists("k")):
            with pytest.raises(
                UnavailableError, match=r"refuses our credentials.*HOLDFAST_S3_SECRET_KEY"
            ) as caught:
                ask()
            assert "wrong-one" not in str(caught.value)

    def test_many_objects_are_deleted_at_once(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More than one request takes; missing ones do not matter."""
        monkeypatch.setattr(s3, "DELETE_AT_ONCE", 10)
        for n in range(23):
            store.put(f"d/{n}", b"")
        store.put("kept", b"")
        store.delete_many([*(f"d/{n}" for n in range(23)), "d/never"])
        store.delete_many([])
        assert [found.key for found in store.list("")] == ["kept"]

    def test_an_unfinished_upload_is_found_and_dropped(self, store: S3Store) -> None:
        """As a process leaves it that was killed between two parts; others' stay."""
        client = store._client()
        for key in ("a/torn", "b/other"):
            upload = client.create_multipart_upload(Bucket=store.bucket, Key=key)["UploadId"]
            client.upload_part(
                Bucket=store.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 5 * MIB
            )
        (found,) = store.unfinished("a/")
        assert found.key == "a/torn"
        assert abs(found.active_at - time.time()) < 3600  # also where the store makes up when it was begun
        store.abort(found)
        store.abort(found)
        assert [each.key for each in store.unfinished("")] == ["b/other"]
        assert list(store.list("")) == []
