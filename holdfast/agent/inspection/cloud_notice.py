"""Notices of the cloud, asked of the metadata service of this very machine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

import httpx

from holdfast.agent.inspection.metadata_service import MetadataService
from holdfast.models.alert import Alert, AlertKind, Finding, MoveSource
from holdfast.policies.classify import cloud_notice
from holdfast.policies.classify.cloud_notice import Notice

_log = logging.getLogger(__name__)
_TOKEN_S = 300
_AGAIN_S = 600.0
_TRIES = 10
"""A notice is reported again after this part of the time that is left."""
_QUIET_S = 600.0
"""Between two lines about the same problem."""


class Notices(Protocol):
    """One cloud."""

    complete: bool
    """Whether all sources answered at the last look, so that a notice that was not among them was withdrawn."""

    def read(self) -> list[Notice]:
        """Return what is announced for this machine now.

        Raises:
            ValueError: an answer is not as documented.
            httpx.HTTPError: the metadata service does not answer.
        """
        ...


class Ec2:
    """EC2's instance metadata, with a session token (IMDSv2)."""

    def __init__(self, http: MetadataService) -> None:
        self._http = http
        self.complete = True

    def read(self) -> list[Notice]:
        """Return interruptions of a Spot instance and scheduled events."""
        put = self._http.put("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": f"{_TOKEN_S}"})
        token = {"X-aws-ec2-metadata-token": put.raise_for_status().text}
        found, self.complete = _of_all(
            lambda: self._read(cloud_notice.ec2_spot, "spot/instance-action", token),
            lambda: self._read(cloud_notice.ec2_events, "events/maintenance/scheduled", token),
        )
        return found

    def _read(self, parse: Callable[[str], list[Notice]], path: str, token: dict[str, str]) -> list[Notice]:
        body = self._get(path, token)
        return parse(body) if body else []

    def _get(self, path: str, token: dict[str, str]) -> str:
        answer = self._http.get(f"/latest/meta-data/{path}", token)
        return "" if answer.status_code == 404 else answer.raise_for_status().text


class Gce:
    """Compute Engine's metadata server."""

    def __init__(self, http: MetadataService) -> None:
        self._http = http
        self.complete = True

    def read(self) -> list[Notice]:
        """Return a stop for maintenance, and a preemption."""
        found, self.complete = _of_all(
            lambda: cloud_notice.gce_maintenance(self._get("maintenance-event")),
            lambda: cloud_notice.gce_preempted(self._get("preempted")),
        )
        return found

    def _get(self, name: str) -> str:
        path = f"/computeMetadata/v1/instance/{name}"
        return self._http.get(path, {"Metadata-Flavor": "Google"}).raise_for_status().text


def _of_all(*reads: Callable[[], list[Notice]]) -> tuple[list[Notice], bool]:
    """Return the notices of all sources, and whether all answered: one that does not hides none of the others.

    Raises:
        ValueError: there is no notice, and an answer is not as documented.
        httpx.HTTPError: there is no notice, and a source does not answer.
    """
    found: list[Notice] = []
    problem: Exception | None = None
    for read in reads:
        try:
            found += read()
        except (httpx.HTTPError, ValueError) as error:
            problem = problem or error
    if problem is not None and not found:
        raise problem
    return found, problem is None


class Azure:
    """Azure's instance metadata service."""

    def __init__(self, http: MetadataService) -> None:
        self._http = http
        self.complete = True

    def read(self) -> list[Notice]:
        """Return scheduled events of this virtual machine. Its name is asked each time: no wrong one lasts."""
        found = self._get("instance/compute/name", {"api-version": "2021-02-01", "format": "text"})
        name = cloud_notice.azure_name(found)
        return cloud_notice.azure(self._get("scheduledevents", {"api-version": "2020-07-01"}), name)

    def _get(self, path: str, asked: dict[str, str]) -> str:
        answer = self._http.get(f"/metadata/{path}", {"Metadata": "true"}, asked)
        return answer.raise_for_status().text


CLOUDS: dict[str, tuple[Callable[[MetadataService], Notices], str]] = {
    "ec2": (Ec2, "http://169.254.169.254"),
    "gce": (Gce, "http://metadata.google.internal"),
    "azure": (Azure, "http://169.254.169.254"),
}
"""By the name in the settings: the reader, and where the metadata service is."""


def cloud(name: str, address: str = "") -> Notices:
    """Return the reader of a cloud; ``address`` is for a metadata service elsewhere."""
    make, usual = CLOUDS[name]
    return make(MetadataService(address or usual))


class CloudNotices:
    """The detector. An answer that is not understood, or none, is logged and asks for nothing."""

    name = "cloud_notice"
    blocking = True

    def __init__(
        self, machine: str, notices: Notices, interval_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.interval_s = interval_s
        self._machine = machine
        self._notices = notices
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._reported_at: dict[str, float] = {}
        self._stand: set[MoveSource] = set()
        """Sources of notices that were reported."""

    def poll(self) -> list[Alert]:
        """Return an alert for each notice that is new, or due to be reported again, and for what was withdrawn."""
        now = self._clock()
        try:
            found = self._notices.read()
        except (httpx.HTTPError, ValueError) as error:
            self._say(f"{type(error).__name__}: {error}", now)
            return []
        self._reported_at = {
            each.id: self._reported_at[each.id] for each in found if each.id in self._reported_at
        }
        due = [
            each for each in found if now - self._reported_at.get(each.id, -math.inf) >= _again_s(each, now)
        ]
        self._reported_at |= {each.id: now for each in due}
        return [*self._withdrawn(found, now), *(self._alert(notice, now) for notice in due)]

    def _withdrawn(self, found: list[Notice], now: float) -> list[Alert]:
        """Return an alert that is over for each source none of whose notices stands any more."""
        stand = {each.source for each in found}
        over = self._stand - stand if self._notices.complete else set()
        self._stand = (self._stand | stand) - over
        return [
            Alert(
                kind=AlertKind.PLANNED_MOVE,
                machine=self._machine,
                at=now,
                firing=False,
                fingerprint=f"planned_move:{self._machine}:{source.value}:over",
                evidence={"source": source.value, "text": "the notice was withdrawn"},
            )
            for source in sorted(over)
        ]

    def inspect(self) -> list[Finding]:
        """Return nothing: a notice is no sign of the machine's health."""
        return []

    def _alert(self, notice: Notice, now: float) -> Alert:
        evidence: dict[str, object] = {"source": notice.source.value, "text": notice.text}
        if _comes(notice, now):
            evidence["deadline_at"] = notice.deadline_at
        return Alert(
            kind=AlertKind.PLANNED_MOVE,
            machine=self._machine,
            at=now,
            fingerprint=f"planned_move:{self._machine}:{notice.id}"[:200],
            evidence=evidence,
        )

    def _say(self, problem: str, now: float) -> None:
        if now - self._logged_at.get(problem, -_QUIET_S) >= _QUIET_S:
            self._logged_at = {problem: now}
            _log.warning("notices of the cloud: %s", problem)


def _again_s(notice: Notice, now: float) -> float:
    """Return after how long a notice that stands is reported again: a try now and then, not always."""
    if notice.deadline_at is None or not _comes(notice, now):
        return _AGAIN_S
    return (notice.deadline_at - now) / _TRIES


def _comes(notice: Notice, now: float) -> bool:
    """Return whether its time is known and ahead; once it has passed, the machine goes at any moment, or in hours."""
    return notice.deadline_at is not None and notice.deadline_at > now
