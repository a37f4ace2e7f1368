"""Requests to the Kubernetes API: plain JSON in and out, errors as ours, retries while the server is busy.

The official client brings connections, kubeconfig and in-cluster credentials (with their renewal); bodies are
dictionaries, because one body serves servers of many versions and is validated against the schemas of each.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from holdfast.errors import RefusedError, SettingsError, UnauthorizedError, UnavailableError, UnknownError

Object = dict[str, Any]
"""A Kubernetes object, or any other JSON object of its API."""

CONNECT_S, READ_S = 5.0, 30.0
PATIENCE_S = 60.0
"""How long a busy or unreachable API server is asked again."""
_MERGE = "application/merge-patch+json"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_BUSY = (429, 500, 502, 503, 504)
_BY_ADMISSION = re.compile(
    "exceeded quota|failed quota|violates PodSecurity|admission webhook|denied request"
)
"""Refusals with the status of a missing right that no role changes."""


class BusyError(UnavailableError):
    """The API server did not answer, or asks to come back later."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s
        """Seconds that the server sent in ``Retry-After``; 0: none."""


class GoneError(RefusedError):
    """The resource version is too old to watch from: list again."""


class ConflictError(RefusedError):
    """The object changed meanwhile, exists already, or is not the one that was meant (its uid)."""


class BudgetError(RefusedError):
    """A disruption budget does not allow the eviction now."""


class Api:
    """One API server as one user. Safe to use from several threads."""

    def __init__(self, connection: client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self._client = connection
        self._retrying = Retrying(
            retry=retry_if_exception_type(BusyError),
            wait=_wait,
            stop=stop_after_delay(PATIENCE_S),
            reraise=True,
        )

    @classmethod
    def connect(cls, kubeconfig: str, namespace: str) -> Api:
        """Connect to the server of ``kubeconfig`` (file; empty: the pod's own service account, else ~/.kube/config).

        ``namespace`` empty: the pod's own, else the kubeconfig's.

        Raises:
            SettingsError: there is no such file, or no usable server in it.
        """
        configuration = client.Configuration()
        inside = not kubeconfig and (_SERVICE_ACCOUNT / "token").exists()
        try:
            if inside:
                config.load_incluster_config(client_configuration=configuration)
            else:
                config.load_kube_config(kubeconfig or None, client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise SettingsError(
                f"HOLDFAST_KUBERNETES_CONFIG = {kubeconfig!r}: {error}. Name a kubeconfig file, or run in a pod."
            ) from None
        configuration.retries = False  # ours knows which answers are worth another try
        return cls(client.ApiClient(configuration), namespace or _own_namespace(kubeconfig, inside))

    def get(self, path: str, **query: str) -> Object:
        """Read one object, or a list."""
        return self._patiently("GET", path, query)

    def create(self, path: str, body: Object) -> Object:
        """Create an object; safe to repeat, as a second try finds it (:class:`ConflictError`)."""
        return self._patiently("POST", path, {}, body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge ``body`` into an object; with ``metadata.resourceVersion`` in it only if it was not changed since."""
        return self._patiently("PATCH", path, {}, body, _MERGE)

    def delete(self, path: str, **options: Any) -> Object:
        """Delete an object with ``DeleteOptions``."""
        return self._patiently("DELETE", path, {}, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def watch(self, path: str, *, resource_version: str, timeout_s: float, **query: str) -> Iterator[Object]:
        """Yield events from ``resource_version`` on, until the server or ``timeout_s`` ends the stream. Not retried.

        Raises:
            GoneError: events that old are forgotten.
            BusyError: the server does not answer.
        """
        asked = {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(timeout_s))),
            **query,
        }
        response = self._send("GET", path, asked, read_s=timeout_s + 1)
        try:
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise _error(int(status.get("code", 500)), status, f"watch {path}", 0.0)
                yield event
        except urllib3.exceptions.HTTPError as error:
            raise BusyError(f"Kubernetes: watch {path}: {error}") from None
        finally:
            response.close()

    def _patiently(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None = None, kind: str = ""
    ) -> Object:
        def send() -> urllib3.HTTPResponse:
            return self._send(method, path, query, body=body, kind=kind or None)

        def once() -> Object:
            try:
                response = send()
            except UnauthorizedError:
                response = send()  # it may have begun to know its roles only after it refused
            text = _body(response)
            try:
                answer: Object = json.loads(text)
            except ValueError:
                raise UnavailableError(
                    f"Kubernetes: {method} {path}: {self._client.configuration.host} answered {text[:80]!r}, "
                    "which is no JSON. Is it the API server?"
                ) from None
            return answer

        return self._retrying.copy()(once)

    def _serves(self) -> bool:
        """Return whether the server is ready. One that starts denies everything for a moment: it knows no roles yet."""
        asked = self._client.param_serialize("GET", "/readyz", auth_settings=["BearerToken"])
        try:
            answer = self._client.rest_client.request(*asked, _request_timeout=(CONNECT_S, READ_S))
        except (urllib3.exceptions.HTTPError, ApiException):
            return False
        answer.response.drain_conn()
        return bool(answer.response.status == 200)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Object | None = None,
        kind: str | None = None,
        read_s: float = READ_S,
    ) -> urllib3.HTTPResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind or "application/json"
        asked = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            # The timeouts are those of one wait for bytes: a watch may be silent for long.
            answer = self._client.rest_client.request(*asked, _request_timeout=(CONNECT_S, read_s))
        except (urllib3.exceptions.HTTPError, ApiException) as error:
            raise BusyError(f"Kubernetes API server {self._client.configuration.host}: {error}") from None
        response: urllib3.HTTPResponse = answer.response
        if response.status >= 400:
            text = _body(response)
            try:
                status = json.loads(text)
            except ValueError:
                status = {"message": text.decode(errors="replace")}
            refusal = _error(
                response.status, status, f"{method} {path}", _seconds(response.headers.get("Retry-After"))
            )
            if isinstance(refusal, UnauthorizedError) and not self._serves():
                raise BusyError(str(refusal)) from None
            raise refusal
        return response


def _body(response: urllib3.HTTPResponse) -> bytes:
    """Read the whole answer; a connection that breaks midway is treated as none."""
    try:
        return bytes(response.data)
    except urllib3.exceptions.HTTPError as error:
        raise BusyError(f"Kubernetes: the answer broke off: {error}") from None


def patiently(what: Callable[[], Any], *errors: type[Exception], timeout_s: float) -> Any:
    """Retry ``what`` while it raises one of ``errors``, for at most ``timeout_s``; then raise the last error."""
    return Retrying(
        retry=retry_if_exception_type(errors),
        wait=wait_random_exponential(0.1, 2.0),
        stop=stop_after_delay(timeout_s),
        reraise=True,
    )(what)


_backoff = wait_random_exponential(multiplier=0.1, max=8.0)


def _wait(state: RetryCallState) -> float:
    """Return the wait that the server asked for, or an exponential back-off with jitter, which spreads the clients."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.after_s if isinstance(error, BusyError) else 0.0
    return max(asked, _backoff(state))


def _error(code: int, status: Any, asked: str, after_s: float) -> Exception:
    detail = str(status.get("message") or "") if isinstance(status, dict) else str(status)
    message = f"Kubernetes: {asked}: {code} {detail}".rstrip()
    causes = ((status.get("details") or {}).get("causes") or []) if isinstance(status, dict) else []
    if code == 429 and (
        asked.endswith("/eviction") or any(cause.get("reason") == "DisruptionBudget" for cause in causes)
    ):
        why = "; ".join(cause.get("message", "") for cause in causes)
        return BudgetError(f"{message} {why}".rstrip())
    if code in _BUSY:
        return BusyError(message, after_s)
    if code == 401 or (code == 403 and not _BY_ADMISSION.search(detail)):
        return UnauthorizedError(
            f"{message}. The role of deployments/kubernetes/base/rbac.yaml has what Holdfast needs."
        )
    kinds: dict[int, type[Exception]] = {
        404: UnknownError,
        409: ConflictError,
        410: GoneError,
        422: SettingsError,
    }
    return kinds.get(code, RefusedError)(message)


def _lines(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(amt=None, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line)


def _seconds(header: str | None) -> float:
    try:
        return min(float(header or 0), PATIENCE_S)
    except ValueError:
        return 0.0  # a date: our own back-off does


def _own_namespace(kubeconfig: str, inside: bool) -> str:
    if inside:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    _, current = config.list_kube_config_contexts(kubeconfig or None)
    return str(current["context"].get("namespace") or "default")


def now() -> float:
    """Seconds since the Unix epoch."""
    return time.time()
