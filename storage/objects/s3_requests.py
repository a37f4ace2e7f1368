"""Requests to one bucket: bounded in time, repeated where a failure may pass, explained where it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from tenacity import Retrying, retry_if_exception

from holdfast.storage.objects.failures import code_of, explain, is_transient
from holdfast.storage.objects.patience import Patience
from holdfast.storage.objects.s3_client import make_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 20.0
ATTEMPTS = 3
PART_THREADS = 4
"""Parts of one object on their way at once."""


class S3Requests:
    """The clients for one bucket of an S3 endpoint, and how each request to it is made.

    Without keys requests are signed with what the AWS SDKs find, and renew, in this process.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        bucket: str,
        access_key: str = "",
        secret_key: str = "",
        session_token: str = "",
        region: str = "us-east-1",
        addressing: Literal["path", "virtual"] = "path",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.endpoint = endpoint
        self.bucket = bucket
        self._region = region
        self._addressing = addressing
        self._keys = (access_key or None, secret_key or None, session_token or None)
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self._attempts = attempts
        self._clients: dict[int, S3Client] = {}
        self._lock = threading.Lock()

    def _call(self, key: str, request: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
        with self._explained(key):
            return self._patiently(request, Patience(self._attempts, reached))

    def _patiently(self, request: Callable[[], T], patience: Patience) -> T:
        return Retrying(
            retry=retry_if_exception(is_transient),
            stop=patience.is_over,
            wait=patience.pause_s,
            reraise=True,
        )(request)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, Boto3Error, ConnectionError) as error:
            cause = _cause(error)
            if isinstance(cause, NoCredentialsError):  # a client without credentials looks for none again
                with self._lock:
                    self._clients.clear()
            raise explain(cause, self.endpoint, self.bucket, key) from cause

    def _transfers(self) -> S3Client:
        """Return the client for transfers in parts, each retried by itself."""
        return self._client(self._attempts)

    def _client(self, attempts: int = 1) -> S3Client:
        """Return a client that sends a request up to ``attempts`` times by itself."""
        with self._lock:
            if attempts not in self._clients:
                self._clients[attempts] = self._connect(attempts)
            return self._clients[attempts]

    def _connect(self, attempts: int) -> S3Client:
        connect_timeout_s, read_timeout_s = self._timeouts
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            response_checksum_validation="when_required",
            s3={"addressing_style": self._addressing},
            max_pool_connections=4 * PART_THREADS,
        )
        return make_client(
            endpoint_url=self.endpoint,
            region_name=self._region,
            aws_access_key_id=self._keys[0],
            aws_secret_access_key=self._keys[1],
            aws_session_token=self._keys[2],
            config=config,
        )

    def _has_bucket(self) -> bool:
        def ask() -> bool:
            try:
                self._client().head_bucket(Bucket=self.bucket)
            except ClientError as error:
                if code_of(error) in {"404", "NoSuchBucket"}:
                    return False
                raise
            return True

        return self._call("", ask)


def _cause(error: Exception) -> Exception:
    """Return the cause of a failed transfer: boto3 wraps it in an error of its own."""
    inner = error.__context__ if isinstance(error, Boto3Error) else None
    return inner if isinstance(inner, ClientError | BotoCoreError) else error


def no_bucket() -> ClientError:
    """Return the error of a missing bucket, for answers that name none."""
    return ClientError({"Error": {"Code": "NoSuchBucket"}}, "HeadObject")
