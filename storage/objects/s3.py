"""Objects in S3, through boto3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError, IncompleteReadError
from botocore.response import StreamingBody

from holdfast.errors import UnavailableError, UnknownError
from holdfast.storage.objects import multipart
from holdfast.storage.objects.base import Body, ObjectInfo, Unfinished
from holdfast.storage.objects.deadline import Deadline
from holdfast.storage.objects.failures import (
    MISSING_CODES,
    NOT_THERE_CODES,
    code_of,
    explain,
)
from holdfast.storage.objects.landing import landing
from holdfast.storage.objects.patience import Patience
from holdfast.storage.objects.s3_requests import PART_THREADS, S3Requests, no_bucket

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CreateBucketRequestTypeDef, DeleteObjectsOutputTypeDef

T = TypeVar("T")

PART_BYTES = 16 << 20
DELETE_AT_ONCE = 1000
MISSED_S, MISSED_AGAIN_S = 5.0, 0.5
"""How long, and after which pauses, an object is asked for again that is not there though the store lists it."""

_TRANSFER = TransferConfig(
    multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PART_THREADS
)


class S3Store(S3Requests):
    """An :class:`~holdfast.storage.objects.base.ObjectStore` in one bucket of an S3 endpoint.

    Made with what :class:`S3Requests` takes.
    """

    _deletes_many = True
    """Whether the endpoint is not known to delete one by one only."""

    def put(self, key: str, body: Body) -> None:
        """Store a small object in one request."""
        if isinstance(body, bytes | bytearray | memoryview):
            content = bytes(body)
            self._call(key, lambda: self._client().put_object(Bucket=self.bucket, Key=key, Body=content))
            return
        start = body.tell()

        def send() -> None:
            body.seek(start)
            self._client().put_object(Bucket=self.bucket, Key=key, Body=body)

        self._call(key, send)

    def put_stream(self, key: str, body: BinaryIO) -> None:
        """Store a large object in parallel parts, each retried by itself; aborted whole when one fails."""
        with self._explained(key):
            # s3transfer closes nothing and reads parts into memory: PART_BYTES x PART_THREADS at most.
            self._transfers().upload_fileobj(body, self.bucket, key, Config=_TRANSFER)

    def put_view(self, key: str, view: memoryview, *, within_s: float) -> None:
        """Store bytes straight from memory; more than one part's worth in parallel parts."""
        deadline = Deadline(f"upload of {key!r} to S3 at {self.endpoint}", within_s)

        def whole() -> None:
            deadline.check()
            self._client().put_object(Bucket=self.bucket, Key=key, Body=multipart.body_of(view))

        with self._explained(key):
            if len(view) <= PART_BYTES:
                self._patiently(whole, Patience(self._attempts, deadline=deadline))
                return
            multipart.send(
                self._client(),
                self.bucket,
                key,
                view,
                part_bytes=PART_BYTES,
                threads=PART_THREADS,
                retry=lambda request: self._patiently(request, Patience(self._attempts, deadline=deadline)),
                deadline=deadline,
            )

    def get(self, key: str) -> bytes:
        """Return the whole object, checked against its checksum where the store has one."""

        def read() -> bytes:
            answer = self._client().get_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
            return answer["Body"].read()

        return self._though_missed(key, lambda: self._call(key, read))

    def get_range(self, key: str, start: int, nbytes: int) -> bytes:
        """Exactly ``nbytes`` from byte ``start``."""
        found: list[bytes] = []
        self.read_range(key, start, nbytes, max(1, nbytes), found.append)
        return b"".join(found)

    def read_range(
        self, key: str, start: int, nbytes: int, chunk_nbytes: int, take: Callable[[bytes], None]
    ) -> None:
        """Give ``take`` the bytes as they come; a connection that breaks is gone on with where it broke."""
        at, end = start, start + nbytes

        def read() -> None:
            nonlocal at
            with closing(self._open_range(key, start, at, end)) as body:
                for chunk in body.iter_chunks(chunk_nbytes):
                    if len(chunk) < min(chunk_nbytes, end - at):
                        raise IncompleteReadError(actual_bytes=at + len(chunk), expected_bytes=end)
                    take(chunk)
                    at += len(chunk)

        if nbytes:
            self._though_missed(key, lambda: self._call(key, read, lambda: at))

    def _open_range(self, key: str, start: int, at: int, end: int) -> StreamingBody:
        """Open the rest of a range, from ``at`` on."""
        try:
            # Unchecked: rclone sends the checksum of the whole object with a range.
            answer = self._client().get_object(Bucket=self.bucket, Key=key, Range=f"bytes={at}-{end - 1}")
            coming = answer["ContentLength"]
        except ClientError as error:
            if code_of(error) not in {"InvalidRange", "416"}:
                raise
            coming = 0
        if coming < end - at:
            raise UnknownError(
                f"object {key!r} in bucket {self.bucket!r} has {at + coming - start} of the {end - start} bytes "
                f"asked for at {start}: it is shorter than expected."
            )
        if coming > end - at:
            raise UnavailableError(
                f"S3 at {self.endpoint} answers a request for {end - at} bytes of {key!r} with {coming}: it does not "
                "know ranges."
            )
        return answer["Body"]

    def fetch(self, key: str, path: Path) -> int:
        """Download to ``path`` in parallel ranges; it appears under its name only when complete."""
        nbytes = self.head(key).nbytes
        with landing(path, key, nbytes) as file:

            def load() -> None:
                with self._explained(key):
                    self._transfers().download_fileobj(self.bucket, key, file, Config=_TRANSFER)

            self._though_missed(key, load)
        return nbytes

    def _though_missed(self, key: str, read: Callable[[], T]) -> T:
        """Read an object again for a while where it is not there though the store lists it: caches keep a 404."""
        until = time.monotonic() + MISSED_S
        while True:
            try:
                return read()
            except UnknownError as error:
                missed = code_of(error.__cause__ or error) in MISSING_CODES
                if not missed or time.monotonic() > until or self._listed(key) is None:
                    raise
            time.sleep(MISSED_AGAIN_S)

    def _listed(self, key: str) -> ObjectInfo | None:
        """Return an object as the store lists it; a missing bucket is an error."""
        return next((info for info in self.list(key) if info.key == key), None)

    def exists(self, key: str) -> bool:
        """Return whether there is such an object; a missing bucket is an error, not a no."""
        return self._find(key) is not None

    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""
        found = self._find(key)
        if found is None:
            raise UnknownError(f"no object {key!r} in bucket {self.bucket!r} of S3 at {self.endpoint}.")
        return found

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects under ``prefix``, in order of keys."""

        def read() -> tuple[ObjectInfo, ...]:
            pages = (
                self._client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
            )
            return tuple(
                ObjectInfo(
                    key=found["Key"], nbytes=found["Size"], modified_at=found["LastModified"].timestamp()
                )
                for page in pages
                for found in page.get("Contents", ())
            )

        return iter(sorted(self._call(prefix, read), key=lambda found: found.key))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Return the prefixes one slash below ``prefix``."""

        def read() -> frozenset[str]:
            pages = self._client().get_paginator("list_objects_v2")
            return frozenset(
                found["Prefix"]
                for page in pages.paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
                for found in page.get("CommonPrefixes", ())
            )

        return tuple(sorted(self._call(prefix, read)))

    def unfinished(self, prefix: str) -> tuple[Unfinished, ...]:
        """Multipart uploads under ``prefix`` that were begun and not ended."""

        def read() -> tuple[Unfinished, ...] | None:
            pages = self._client().get_paginator("list_multipart_uploads")
            try:
                return tuple(
                    Unfinished(
                        key=found["Key"],
                        upload_id=found["UploadId"],
                        active_at=max(
                            found["Initiated"].timestamp(), self._newest_part(found["Key"], found["UploadId"])
                        ),
                    )
                    for page in pages.paginate(Bucket=self.bucket, Prefix=prefix)
                    for found in page.get("Uploads", ())
                )
            except ClientError as error:
                # rclone's answer when there is none, and for a missing bucket.
                if code_of(error) != "NoSuchUpload":
                    raise
                return None

        found = self._call(prefix, read)
        if found is None and not self._has_bucket():
            raise explain(no_bucket(), self.endpoint, self.bucket, prefix)
        return found or ()

    def _newest_part(self, key: str, upload_id: str) -> float:
        """Return when the newest part of an upload came; 0 without parts, or when it has ended meanwhile."""
        try:
            pages = self._client().get_paginator("list_parts")
            listed = pages.paginate(Bucket=self.bucket, Key=key, UploadId=upload_id)
            times = [part["LastModified"].timestamp() for page in listed for part in page.get("Parts", ())]
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise
            times = []
        return max(times, default=0.0)

    def abort(self, upload: Unfinished) -> None:
        """Drop an unfinished upload, if it is there."""

        def ask() -> None:
            try:
                self._client().abort_multipart_upload(
                    Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id
                )
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

        self._call(upload.key, ask)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, as many per request as S3 takes."""
        listed = tuple(keys)
        for at in range(0, len(listed), DELETE_AT_ONCE):
            self._delete_some(listed[at : at + DELETE_AT_ONCE])

    def _delete_some(self, keys: Sequence[str]) -> None:
        def ask() -> DeleteObjectsOutputTypeDef | None:
            try:
                return self._client().delete_objects(
                    Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
                )
            except ClientError as error:
                if code_of(error) not in NOT_THERE_CODES:
                    raise
                return None

        answer = self._call(keys[0], ask) if self._deletes_many else None
        if answer is None:  # Google's S3 interface, among others, deletes one by one only
            self._deletes_many = False
            for key in keys:
                self.delete(key)
            return
        if failed := [each for each in answer.get("Errors", ()) if each.get("Code") not in MISSING_CODES]:
            raise UnavailableError(
                f"S3 at {self.endpoint} did not delete {len(failed)} of {len(keys)} objects, the first "
                f"{failed[0].get('Key')!r}: {failed[0].get('Code')} {failed[0].get('Message')}."
            )

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        try:
            self._call(key, lambda: self._client().delete_object(Bucket=self.bucket, Key=key))
        except UnknownError as error:
            if code_of(error.__cause__ or error) == "NoSuchBucket":
                raise

    def ensure_bucket(self) -> None:
        """Make the bucket if it does not exist."""
        if self._has_bucket():
            return
        request: CreateBucketRequestTypeDef = {"Bucket": self.bucket}
        if self._region != "us-east-1":
            request["CreateBucketConfiguration"] = {"LocationConstraint": self._region}  # type: ignore[typeddict-item]

        def create() -> None:
            try:
                self._client().create_bucket(**request)
            except ClientError as error:
                if code_of(error) not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
                    raise

        self._call("", create)

    def _find(self, key: str) -> ObjectInfo | None:
        def ask() -> ObjectInfo | None:
            try:
                found = self._client().head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if code_of(error) in MISSING_CODES:
                    return None
                raise
            return ObjectInfo(
                key=key, nbytes=found["ContentLength"], modified_at=found["LastModified"].timestamp()
            )

        # An answer to HEAD has no body, so a missing bucket looks like a missing object; and caches keep a 404.
        return self._call(key, ask) or self._listed(key)
