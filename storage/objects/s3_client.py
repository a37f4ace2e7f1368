"""Clients of boto3 for S3, quick to make, and adapted to stores that boto3 alone does not suit."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import threading
from typing import TYPE_CHECKING, Any

from boto3.session import Session

from holdfast.storage.objects.failures import ElsewhereError, NotAStoreError

if TYPE_CHECKING:
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client

_session = functools.cache(Session)
"""One for all stores of a process: the descriptions of the service are read once, which costs 0.1 s."""
_making = threading.Lock()
_ALWAYS = {
    "PutObject": ("ETag",),
    "CreateMultipartUpload": ("UploadId",),
    "UploadPart": ("ETag",),
    "HeadObject": ("ETag",),
    "ListObjectsV2": ("Name", "IsTruncated", "KeyCount", "MaxKeys"),
}
"""Fields of which each store's good answer has at least one, by operation."""

_ELSEWHERE = frozenset({301, 302, 303, 307, 308})
_ENDPOINT = re.compile(rb"<Endpoint>([^<]{1,300})</Endpoint>")


def get_ready() -> None:
    """Do beforehand what takes most of the time that a process needs for its first client."""
    make_client(region_name="us-east-1", aws_access_key_id="nobody", aws_secret_access_key="none")


def make_client(**options: Any) -> S3Client:
    """Return a client of S3 with boto3's ``options``."""
    with _making:  # sessions do not like two threads
        client = _session().client("s3", **options)
    client.meta.events.register("before-parse.s3.GetObject", _no_stream_in_errors)
    client.meta.events.register("before-parse.s3", _not_elsewhere)
    client.meta.events.register("before-call.s3.DeleteObjects", _digested)
    for operation in _ALWAYS:
        client.meta.events.register(f"after-call.s3.{operation}", _of_a_store)
    return client


def _of_a_store(parsed: dict[str, Any], model: OperationModel, **_: object) -> None:
    """Refuse a good answer that no store gives, as of a login page or proxy in between: nothing was kept or listed.

    Raises:
        NotAStoreError: it has nothing of what each answer to this operation has.
    """
    status = parsed.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if 200 <= status < 300 and not any(name in parsed for name in _ALWAYS[model.name]):
        raise NotAStoreError(operation=model.name, status=status)


def _not_elsewhere(response_dict: dict[str, Any], operation_model: OperationModel, **_: object) -> None:
    """Refuse an answer that names another address: boto3 asks the same endpoint for the region, again and again.

    Raises:
        ElsewhereError: with what the answer names.
    """
    status, headers = response_dict["status_code"], response_dict["headers"]
    if status not in _ELSEWHERE:
        return
    body = response_dict["body"]
    named = _ENDPOINT.search(body) if isinstance(body, bytes) else None
    error = ElsewhereError(operation=operation_model.name, status=status)
    error.region = str(headers.get("x-amz-bucket-region", ""))
    error.to = named[1].decode(errors="replace") if named else str(headers.get("location", ""))
    raise error


def _digested(params: dict[str, Any], **_: object) -> None:
    """Send ``Content-MD5`` too: boto3 sends only newer checksums, and older stores refuse ``DeleteObjects`` without."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _no_stream_in_errors(response_dict: dict[str, Any], **_: object) -> None:
    """Empty an error's body that botocore wrapped for a checksum: it has none to verify, and cannot be parsed then."""
    if response_dict["status_code"] >= 300 and not isinstance(response_dict["body"], bytes):
        response_dict["body"] = b""
