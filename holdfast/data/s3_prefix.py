"""A prefix of an S3 bucket."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.data.files import File, counts
from holdfast.data.places import changed
from holdfast.data.ranges import opened
from holdfast.errors import EmptyPlaceError, SettingsError, SourceError, UnavailableError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SCHEME = "s3://"
_GONE = {"NoSuchKey", "404"}
_NO_PLACE = {"NoSuchBucket", "404", "InvalidBucketName"}
_ANOTHER = {"PreconditionFailed", "412"}
_TOKENS = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
_PASSING = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"}
"""Answers with status 400 after which the same request may succeed."""


@dataclass(frozen=True)
class S3Place:
    """All objects below a prefix, but those with a part of their path that begins with ``.`` or ``_``."""

    name: str
    """``s3://bucket/prefix/``."""
    endpoint: str | None = None
    """None: that of the environment (``AWS_ENDPOINT_URL``) or Amazon's."""

    def __post_init__(self) -> None:
        if not self._bucket or not self.name.startswith(_SCHEME):
            raise SettingsError(f"{self.name}: expected s3://bucket/prefix/")

    @property
    def _bucket(self) -> str:
        return self._parts[0]

    @property
    def _prefix(self) -> str:
        prefix = self._parts[1].strip("/")
        return f"{prefix}/" if prefix else ""

    @property
    def _parts(self) -> tuple[str, str]:
        """The bucket, and the rest as it is: in keys # and ? are signs as any other."""
        bucket, _, rest = self.name.removeprefix(_SCHEME).partition("/")
        return bucket, rest

    def files(self) -> Iterator[File]:
        """List it."""
        import botocore.exceptions as failed  # noqa: PLC0415  (0.15 s)

        pages = self._client().get_paginator("list_objects_v2")
        found = 0
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for each in page.get("Contents", ()):
                    path = each["Key"][len(self._prefix) :]
                    found += 1
                    if path and not path.endswith("/") and counts(path):
                        yield File(path, each["Size"], each["ETag"].strip('"'))
        except failed.ClientError as error:
            raise self._failed(error, _NO_PLACE, f"no such bucket ({_code(error)})") from None
        except failed.BotoCoreError as error:
            raise UnavailableError(f"{self.name}: S3 does not answer: {error}") from None
        if not found:
            raise EmptyPlaceError(f"{self.name}: no object has this prefix")

    def open(self, file: File) -> BinaryIO:
        """Open it: every range is asked for as of the listed ETag."""
        return opened(file.nbytes, functools.partial(self._bring, file))

    def _bring(self, file: File, start: int, stop: int) -> bytes:
        import botocore.exceptions as failed  # noqa: PLC0415  (0.15 s)

        try:
            answer = self._client().get_object(
                Bucket=self._bucket,
                Key=self._prefix + file.path,
                Range=f"bytes={start}-{stop - 1}",
                IfMatch=f'"{file.version}"',
            )
            # Not every store keeps to the condition.
            if (now := answer["ETag"].strip('"')) != file.version:
                raise SourceError(changed(self.name, file, f"it has ETag {now}"))
            content = answer["Body"].read()
        except failed.ClientError as error:
            if _code(error) in _ANOTHER | {"InvalidRange", "416"}:
                raise SourceError(changed(self.name, file, "it has another ETag")) from None
            raise self._failed(
                error, _GONE | _NO_PLACE, changed(self.name, file, "it is gone"), whole=True
            ) from None
        except (failed.BotoCoreError, failed.HTTPClientError, OSError) as error:
            raise UnavailableError(f"{self.name}: S3 does not answer: {error}") from None
        if len(content) != stop - start:
            raise UnavailableError(f"{self.name}{file.path}: {len(content)} bytes came of {stop - start}")
        return content

    def _failed(
        self, error: Any, missing: set[str], reason: str, *, whole: bool = False
    ) -> SourceError | UnavailableError:
        code = _code(error)
        if code in missing:
            return SourceError(reason if whole else f"{self.name}: {reason}")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status in (401, 403) or code in _TOKENS:
            return SourceError(f"{self.name}: S3 refuses the credentials ({code})")
        if 400 <= status < 500 and status not in (408, 429) and code not in _PASSING:
            return SourceError(f"{self.name}: S3 refuses the request ({code})")
        return UnavailableError(f"{self.name}: S3 answered {code}")

    def _client(self) -> S3Client:
        return _client_of(os.getpid(), self.endpoint)


@functools.cache
def _client_of(_pid: int, endpoint: str | None) -> S3Client:
    """Return the client of a process; a fork must not use its parent's connections."""
    from boto3.session import Session  # noqa: PLC0415  (0.15 s)
    from botocore.config import Config  # noqa: PLC0415

    config = Config(
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=32,
        response_checksum_validation="when_required",  # rclone sends that of the whole object with a range
        retries={"mode": "standard", "total_max_attempts": 5},
        s3={"addressing_style": "path"} if endpoint else {},
    )
    return Session().client("s3", endpoint_url=endpoint, config=config)


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
