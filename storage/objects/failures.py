"""Failures of S3: which ones are retried, and their translation to our errors."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    ResponseStreamingError,
    SSLError,
    SSOError,
)

from holdfast.errors import HoldfastError, UnavailableError, UnknownError

_SLOWER_CODES = frozenset({"SlowDown", "Throttling", "ThrottlingException"})
_TRANSIENT_CODES = _SLOWER_CODES | {"RequestTimeout", "InternalError", "ServiceUnavailable"}
_REFUSED_CODES = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_TOKEN_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
_SKEWED_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
"""Answers to requests signed at a time that is minutes off the store's."""
_SKEWED_S = 600.0
"""Stores refuse what is signed 15 minutes off. An answer to HEAD has a status and the store's time, and no code."""
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
)
MISSING_CODES = frozenset({"404", "NoSuchKey", "NotFound"})
NOT_THERE_CODES = frozenset({"NotImplemented", "MethodNotAllowed", "501", "405"})
"""Answers of a store that does not have the operation."""


_TORN = (FlexibleChecksumError, IncompleteReadError, ResponseStreamingError)
# botocore has no common class for these that certificates, which stay wrong, are not of as well.
_NO_ANSWER = (
    CredentialRetrievalError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    HTTPClientError,
    ConnectionError,
)


class NotAStoreError(BotoCoreError):
    """A good answer that no store of S3's kind gives."""

    fmt = "{operation} was answered with status {status} and without a field that every answer of S3 has"


class ElsewhereError(BotoCoreError):
    """An answer that sends the request to another address: the bucket is in another region, or the endpoint moved."""

    fmt = "{operation} was sent elsewhere with status {status}"

    region: str = ""
    """Where the bucket is, by the store; empty: it does not name one."""
    to: str = ""
    """The other address; empty: it does not name one."""


def code_of(error: BaseException) -> str:
    """Return the S3 error code, or empty when the failure is not an answer of the store."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed if sent again: no answer, a torn one, or a server error."""
    if isinstance(error, ClientError):
        status = _status(error)
        if code_of(error) in NOT_THERE_CODES:
            return False
        return status >= 500 or status == 429 or code_of(error) in _TRANSIENT_CODES
    return isinstance(error, (*_TORN, *_NO_ANSWER))


def asks_to_slow_down(error: BaseException | None) -> bool:
    """Return whether the store is well, and has more requests than it takes at present."""
    return error is not None and (code_of(error) in _SLOWER_CODES or _status(error) == 429)


def explain(error: Exception, endpoint: str, bucket: str, key: str) -> HoldfastError:
    """Return the same failure from our error tree, with what is wrong and what to do."""
    code = code_of(error)
    if code == "NoSuchBucket":
        return UnknownError(
            f"S3 at {endpoint} has no bucket {bucket!r}: create it, or point HOLDFAST_S3_BUCKET at one that "
            "exists (`holdfast up` creates that of the embedded server)."
        )
    if code in MISSING_CODES:
        return UnknownError(f"no object {key!r} in bucket {bucket!r} of S3 at {endpoint}.")
    if isinstance(error, ElsewhereError):
        return UnavailableError(_elsewhere(error, endpoint, bucket))
    refused = _refusal(error, f"S3 at {endpoint}", repr(bucket)) if isinstance(error, ClientError) else ""
    return UnavailableError(refused or _trouble(error, endpoint, f"{bucket}/{key}"))


def _refusal(error: ClientError, store: str, bucket: str) -> str:
    """Return why the store does not take the credentials or the clock; empty: it is something else."""
    code, status = code_of(error), _status(error)
    if error.operation_name.startswith("AssumeRole"):
        return (
            f"{store}: AWS STS gives no credentials for bucket {bucket} ({code or status}): check the role of the "
            "service account or profile, and whom it trusts."
        )
    if code in _TOKEN_CODES:
        return (
            f"{store} refuses our session token for bucket {bucket} ({code}): temporary keys end. Set "
            "HOLDFAST_S3_ACCESS_KEY, HOLDFAST_S3_SECRET_KEY and HOLDFAST_S3_SESSION_TOKEN again, or lasting keys, or "
            "HOLDFAST_S3_CREDENTIALS=aws, which renews them."
        )
    if code in _SKEWED_CODES or (status == 403 and code in {"403", "", "Forbidden"} and _is_skewed(error)):
        return (
            f"{store} refuses a request for its time ({code or status}): the clock of this host and that of the store "
            "are minutes apart. Set them by NTP; the keys are not at fault."
        )
    if code == "AuthorizationHeaderMalformed":
        region = str(dict(error.response.get("Error", {})).get("Region") or "its own")
        return (
            f"{store} refuses requests for bucket {bucket} that are signed for another region than {region} ({code}): "
            "set HOLDFAST_S3_REGION."
        )
    if code in _REFUSED_CODES or status in {401, 403}:
        return (
            f"{store} refuses our credentials for bucket {bucket} ({code or status}): check HOLDFAST_S3_ACCESS_KEY, "
            "HOLDFAST_S3_SECRET_KEY (with HOLDFAST_S3_CREDENTIALS=aws: the role) and what they are allowed."
        )
    return ""


def _trouble(error: Exception, endpoint: str, what: str) -> str:
    if isinstance(error, _TORN):
        return f"S3 at {endpoint}: {what} arrived damaged: {error}."
    if isinstance(error, _NO_CREDENTIALS):
        return (
            f"S3 at {endpoint}: no credentials for {what} ({error}). With HOLDFAST_S3_CREDENTIALS=aws each process "
            "takes them from AWS_* variables, ~/.aws, its service account or the instance's role: give it one of these."
        )
    if isinstance(error, SSLError):
        return (
            f"S3 at {endpoint}: no TLS ({error}). Where its certificate is of a CA that this host does not know, name "
            "the CA's file in AWS_CA_BUNDLE, in the environment of the control plane and of machines."
        )
    if isinstance(error, NotAStoreError):
        return (
            f"{endpoint} is no S3 ({what}: {error}): check HOLDFAST_S3_ENDPOINT, and whether a login page or a proxy "
            "answers in place of the store."
        )
    if isinstance(error, BotoCoreError | ConnectionError):
        return (
            f"S3 at {endpoint} does not answer ({type(error).__name__}): check HOLDFAST_S3_ENDPOINT and that "
            "the server runs (`holdfast status`)."
        )
    return f"S3 at {endpoint} failed on {what}: {error}."


def _elsewhere(error: ElsewhereError, endpoint: str, bucket: str) -> str:
    to = f" ({error.to})" if error.to else ""
    if error.region:
        return (
            f"S3 at {endpoint} does not serve bucket {bucket!r}: by its answer that is in region {error.region}. Set "
            f"HOLDFAST_S3_ENDPOINT to the endpoint of that region{to}, and HOLDFAST_S3_REGION={error.region}."
        )
    return (
        f"S3 at {endpoint} sends requests for bucket {bucket!r} elsewhere{to}, which is not followed ({error}): set "
        "HOLDFAST_S3_ENDPOINT to where the store itself is (https:// where it takes nothing else), unless a login page "
        "or a proxy answers in its place."
    )


def _status(error: BaseException) -> int:
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0


def _is_skewed(error: Exception) -> bool:
    """Return whether the store's clock, by its answer, is minutes off this host's."""
    if not isinstance(error, ClientError):
        return False
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        at = parsedate_to_datetime(str(headers.get("date", ""))).timestamp()
    except (ValueError, OverflowError):
        return False
    return abs(time.time() - at) > _SKEWED_S
