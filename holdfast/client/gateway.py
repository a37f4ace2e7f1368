"""Calls to the gateway, as the CLI, the demo and game days make them: synchronous, and clear about why one failed."""

from __future__ import annotations

import getpass
import os
from collections import deque
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from holdfast import __version__, secret, tls
from holdfast.agent.client import raise_for
from holdfast.errors import RefusedError, SettingsError, UnauthorizedError, UnavailableError
from holdfast.models.alert import Incident
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.history import BY_HEADER
from holdfast.models.job import Job, JobSpec
from holdfast.models.machine import Machine, Scope
from holdfast.settings import Settings
from holdfast.tls import PLAIN, Tls

Model = TypeVar("Model", bound=BaseModel)


def understood(model: type[Model], answer: Any) -> Model:
    """Return a part of an answer; fields that only a newer gateway has are left out.

    Raises:
        SettingsError: it cannot be read: the gateway is of another version.
    """
    try:
        return model.model_validate(answer, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise SettingsError(
            f"the gateway's answer cannot be read: {model.__name__}.{field} = {first['input']!r:.100}: {first['msg']}. "
            f"This is Holdfast {__version__}: install the gateway's version here."
        ) from None


class _UnansweredError(UnavailableError):
    """A request was sent, and no answer came: whether it was done is not known."""


class Gateway:
    """One gateway. Use as a context manager.

    Every call raises UnavailableError when nothing answers, UnauthorizedError for a wrong secret, and the
    error that the gateway itself raised otherwise (UnknownError, RefusedError, ...).
    """

    def __init__(
        self,
        url: str,
        token: str,
        secret_path: Path,
        transport: httpx.BaseTransport | None = None,
        certified: Tls = PLAIN,
    ) -> None:
        """Prepare the client; ``url`` may be several, separated by commas: the one that answers stays in use."""
        self._urls = deque(each.strip().rstrip("/") for each in url.split(","))
        self._secret_path = secret_path
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}", BY_HEADER: quote(_person())},
            transport=transport,
            timeout=30.0,
            **certified.http(),
            trust_env=False,  # the secret is for the gateway, not for a proxy
        )

    @classmethod
    def open(cls, settings: Settings, transport: httpx.BaseTransport | None = None) -> Self:
        """Return the gateway of a project."""
        return cls(
            ",".join(settings.gateways),
            secret.of(settings).current,
            settings.secret_path,
            transport,
            tls.of(settings),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def url(self) -> str:
        """Address of the gateway that is asked."""
        return self._urls[0]

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Return whether it answers at all; never raises."""
        try:
            return self._http.get(f"{self.url}/healthz", timeout=timeout_s).is_success
        except httpx.HTTPError:
            return False

    def status(self) -> dict[str, Any]:
        """Return jobs with their ranks, machines, open incidents, pool."""
        answer: dict[str, Any] = self._call("GET", "/v1/status")
        return answer

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        return [understood(Job, row) for row in self._call("GET", "/v1/jobs")]

    def job(self, name: str) -> Job:
        """Return one job."""
        return understood(Job, self._call("GET", f"/v1/jobs/{name}"))

    def history(self, name: str) -> dict[str, Any]:
        """Return a job's epochs and code versions."""
        answer: dict[str, Any] = self._call("GET", f"/v1/jobs/{name}/history")
        return answer

    def submit(self, spec: JobSpec, code_version: str) -> Job:
        """Start a job from a stored code version."""
        body = {"spec": spec.model_dump(mode="json"), "code_version": code_version}
        return understood(Job, self._call("POST", "/v1/jobs", body))

    def command(self, job: str, verb: str, body: object = None) -> Any:
        """Send ``pause``, ``resume`` or ``stop`` for a job."""
        return self._call("POST", f"/v1/jobs/{job}/{verb}", body)

    def update(self, job: str, version: str, *, lazy: bool, note: str) -> str:
        """Ship a stored code version, now or with the next restart; returns what becomes of it."""
        body = {
            "version": version,
            "when": "lazy" if lazy else "now",
            "note": note,
            "by": _person(),
        }
        return _outcome(self._call("POST", f"/v1/jobs/{job}/update", body))

    def scale(self, job: str, machines: int, note: str) -> str:
        """Change the number of machines of a job; returns what becomes of it."""
        body = {"machines": machines, "note": note, "by": _person()}
        return _outcome(self._call("POST", f"/v1/jobs/{job}/scale", body))

    def scale_role(self, job: str, role: str, replicas: int, note: str) -> Job:
        """Change the number of replicas of one role of a job."""
        body = {"replicas": replicas, "note": note, "by": _person()}
        return understood(Job, self._call("POST", f"/v1/jobs/{job}/roles/{role}/scale", body))

    def move(
        self, job: str, machine: str, *, to: str = "", reason: str = "", deadline_s: float | None = None
    ) -> str:
        """Have a job leave a machine that works; returns what becomes of it."""
        body = {"machine": machine, "to": to, "reason": reason, "deadline_s": deadline_s, "by": _person()}
        return _outcome(self._call("POST", f"/v1/jobs/{job}/move", body))

    def machines(self) -> list[Machine]:
        """Return all machines."""
        return [understood(Machine, row) for row in self._call("GET", "/v1/machines")]

    def evict(self, machine: str, scope: Scope, reason: str) -> str:
        """Take a machine out of service; returns what becomes of it."""
        body = {"scope": scope.value, "reason": reason}
        return _outcome(self._call("POST", f"/v1/machines/{machine}/evict", body))

    def release(self, machine: str) -> Any:
        """Give an evicted machine back to the pool."""
        return self._call("POST", f"/v1/machines/{machine}/release")

    def incidents(
        self,
        job: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        *,
        incident_class: str | None = None,
        machine: str | None = None,
    ) -> list[Incident]:
        """Return incidents, newest first; of many only so many of the newest, as the gateway has it by default."""
        most = str(limit) if limit else None
        filters = {"job": job, "state": state, "class": incident_class, "machine": machine, "limit": most}
        asked = {key: value for key, value in filters.items() if value}
        return [understood(Incident, row) for row in self._call("GET", "/v1/incidents", params=asked)]

    def incident(self, incident_id: str) -> dict[str, Any]:
        """Return ``incident``, its ``actions`` and its ``alerts``."""
        answer: dict[str, Any] = self._call("GET", f"/v1/incidents/{incident_id}")
        return answer

    def approve(self, incident_id: str, *, approve: bool, reason: str) -> Any:
        """Answer what a playbook asks; returns the incident."""
        body = {"approve": approve, "by": _person(), "reason": reason}
        return self._call("POST", f"/v1/incidents/{incident_id}/approve", body)

    def pool(self) -> dict[str, Any]:
        """Return the standby pool: what it has, what it should have, and why."""
        answer: dict[str, Any] = self._call("GET", "/v1/pool")
        return answer

    def checkpoints(self, job: str) -> list[RemoteCheckpoint]:
        """Return a job's checkpoints in S3, newest first."""
        rows = self._call("GET", "/v1/checkpoints", params={"job": job})
        return [understood(RemoteCheckpoint, row) for row in rows]

    def _call(self, method: str, path: str, body: object = None, params: dict[str, str] | None = None) -> Any:
        for _ in range(len(self._urls) - 1):
            # A gateway that cannot be reached or stands by did nothing: the next one is asked.
            try:
                return self._ask(method, path, body, params)
            except _UnansweredError:
                self._urls.rotate(-1)
                if method != "GET":
                    raise  # it may do it all the same, and would be asked for twice
            except UnavailableError:
                self._urls.rotate(-1)
        return self._ask(method, path, body, params)

    def _ask(self, method: str, path: str, body: object, params: dict[str, str] | None) -> Any:
        try:
            response = self._http.request(method, f"{self.url}{path}", json=body, params=params)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise UnavailableError(
                f"no gateway answers at {self.url}: start it with `holdfast up`, "
                "or set HOLDFAST_GATEWAY_URL to where it runs."
            ) from None
        except httpx.HTTPError as error:
            what = f"gateway at {self.url}: {type(error).__name__} {error}".rstrip()
            done = (
                "" if method == "GET" else " It may have done it all the same: look with `holdfast status`."
            )
            raise _UnansweredError(f"{what}. See `holdfast doctor`.{done}") from None
        if response.status_code == 401:
            raise UnauthorizedError(
                f"the gateway at {self.url} does not accept the secret in {self._secret_path}: "
                "copy the secret file of the cluster that it belongs to (or set HOLDFAST_SECRET_FILE)."
            )
        raise_for(response)
        return response.json() if response.content else None


def _person() -> str:
    """Return the name of the user, for the audit: the gateway cannot check it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _outcome(answer: dict[str, Any]) -> str:
    """Return the outcome of a request at the gateway, in words.

    Raises:
        RefusedError: it was taken for an alert that may not act.
    """
    words = str(answer.get("message") or answer.get("outcome", "accepted"))
    if answer.get("outcome") == "refused":
        raise RefusedError(words)
    incident = answer.get("incident")
    return f"{words} (`holdfast incident {incident}`)" if incident else words
