"""Large objects straight from memory: S3's multipart upload, its parts sent in parallel.

Until the upload is completed there is no object; one that fails is aborted, and one whose process died is
garbage (:mod:`holdfast.storage.checkpoints.remote.garbage`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from holdfast.storage.objects.deadline import Deadline
from holdfast.storage.objects.memory_body import Window

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Retry = Callable[[Callable[[], Any]], Any]
"""Calls a request, and again while it fails for no lasting reason."""

MOST_PARTS = 10_000
"""S3's limit."""


def body_of(view: memoryview) -> IO[bytes]:
    """Return ``view`` as a request's body. It lacks only those parts of a file that requests do not use."""
    return cast("IO[bytes]", Window(view))


def send(
    client: S3Client,
    bucket: str,
    key: str,
    view: memoryview,
    *,
    part_bytes: int,
    threads: int,
    retry: Retry,
    deadline: Deadline,
) -> None:
    """Upload ``view`` as the object ``key``; aborted as a whole when a part finally fails or time is up."""
    part_bytes = max(part_bytes, -(-len(view) // MOST_PARTS))
    upload_id: str = retry(lambda: client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"])

    def part(number: int) -> str:
        piece = view[(number - 1) * part_bytes : number * part_bytes]

        def request() -> str:
            deadline.check()
            return client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body_of(piece)
            )["ETag"]

        return str(retry(request))

    def complete(tags: list[str]) -> None:
        listed = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        client.complete_multipart_upload(
            Bucket=bucket,
            Key=key,
            UploadId=upload_id,
            MultipartUpload={"Parts": listed},  # type: ignore[typeddict-item]
        )

    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="parts") as pool:
            sent = [pool.submit(part, number) for number in range(1, -(-len(view) // part_bytes) + 1)]
            try:
                tags = [each.result() for each in sent]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        deadline.check()
        try:
            retry(lambda: complete(tags))
        except (BotoCoreError, ClientError):
            # It may be done, and only the answer was lost: the store does not know the upload when it is asked again.
            if not _is_there(client, bucket, key, tags):
                raise
    except BaseException:
        # One attempt: if the store is away, a later clean-up finds the upload.
        with contextlib.suppress(BotoCoreError, ClientError):
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
        raise


def _is_there(client: S3Client, bucket: str, key: str, tags: Sequence[str]) -> bool:
    """Return whether the object is the one of these parts, by the tag that S3 gives what was sent in parts."""
    try:
        digests = b"".join(bytes.fromhex(tag.strip('"')) for tag in tags)
        found = client.head_object(Bucket=bucket, Key=key)["ETag"].strip('"')
    except (ValueError, BotoCoreError, ClientError):
        return False
    return found == f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(tags)}"
