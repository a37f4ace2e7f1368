"""Uploads in parts whose last answer is lost: whether the object is there is looked up, not assumed."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from holdfast.errors import UnavailableError
from holdfast.storage.objects import s3
from holdfast.storage.objects.s3 import S3Store
from holdfast.testing.store_conformance import MIB, pattern

UNKNOWN = ClientError({"Error": {"Code": "NoSuchUpload"}}, "CompleteMultipartUpload")


class Ends:
    """The ends of uploads, of which the store has done or dropped the first before its answer is lost."""

    def __init__(self, store: S3Store, monkeypatch: pytest.MonkeyPatch, *, done: bool) -> None:
        self._client = store._client()
        self._real, self._done, self.times = self._client.complete_multipart_upload, done, 0
        monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
        monkeypatch.setattr(self._client, "complete_multipart_upload", self)

    def __call__(self, **asked: Any) -> Any:
        self.times += 1
        if self.times > 1:
            raise UNKNOWN
        if self._done:
            self._real(**asked)
        raise ReadTimeoutError(endpoint_url="http://s3")


def test_upload_that_was_done_although_its_answer_was_lost_is_done(
    objects: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try finds the upload unknown, and the object is the one of these parts."""
    content, ends = pattern(12 * MIB), Ends(objects, monkeypatch, done=True)
    objects.put_view("k", content, within_s=60)
    assert ends.times == 2
    assert objects.get("k") == content


@pytest.mark.parametrize("before", [b"", bytes(12 * MIB)])
def test_upload_that_another_dropped_is_not_done(
    objects: S3Store, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """Also where there is an object of that name and size: it is not the one of these parts."""
    if before:
        objects.put("k", before)
    ends = Ends(objects, monkeypatch, done=False)
    with pytest.raises(UnavailableError, match="NoSuchUpload"):
        objects.put_view("k", pattern(12 * MIB), within_s=60)
    assert ends.times == 2
    assert objects.exists("k") is bool(before)
