"""Alerts (one signal each) and incidents (what playbooks work on)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field, TypeAdapter, model_validator

from holdfast.models.alert_kinds import (
    GPU_KINDS,
    HOST_KINDS,
    HUMAN_KINDS,
    MACHINE_KINDS,
    NETWORK_KINDS,
    AlertKind,
)
from holdfast.models.base import Finite, Frozen
from holdfast.models.classes import BESIDE_TRAINING, IncidentClass, RecordedClass
from holdfast.models.names import Incarnation, IncidentId, JobName, MachineName, Rank, Version

__all__ = [
    "BESIDE_TRAINING",
    "GPU_KINDS",
    "HOST_KINDS",
    "HUMAN_KINDS",
    "MACHINE_KINDS",
    "NETWORK_KINDS",
    "Alert",
    "AlertKind",
    "Blame",
    "Classification",
    "Finding",
    "Incident",
    "IncidentClass",
    "IncidentState",
    "MoveSource",
    "RecordedClass",
    "Rung",
    "Verdict",
]


class MoveSource(StrEnum):
    """Source of the request for a planned move."""

    BY_HAND = "by_hand"
    """A person: rebalancing, a visit to the rack."""
    MAINTENANCE = "maintenance"
    """A notice of the cloud: the host will be rebooted or migrated."""
    PREEMPTION = "preemption"
    """A notice of the cloud: the machine will be taken away."""
    DRAIN = "drain"
    """The scheduler drains the node."""
    PRECURSOR = "precursor"
    """A sign that the machine will fail."""


_VERSION = TypeAdapter(Version)


class Alert(Frozen):
    """One signal from a detector or from outside."""

    kind: AlertKind
    job: JobName | None = None
    machine: MachineName | None = None
    rank: Rank | None = None
    epoch: int | None = None
    incarnation: Incarnation | None = None
    at: Finite
    """When the detector saw it, seconds since the Unix epoch, on the detector's clock."""
    firing: bool = True
    fingerprint: str = ""
    """Same fault, same fingerprint: what duplicates are recognised by. Empty: derived from the fields."""
    evidence: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _an_update_names_a_version(self) -> Alert:
        if self.kind is AlertKind.CODE_UPDATE and "version" in self.evidence:
            _VERSION.validate_python(self.evidence["version"])
        return self

    @property
    def key(self) -> str:
        """The fingerprint, or one made of what identifies the signal.

        One machine may show several Xids or failed checks at once, on several devices; and a network fault that
        comes again is more than one that came once (such alerts differ by their time).
        """
        if self.fingerprint:
            return self.fingerprint
        parts = [self.kind, self.job, self.epoch, self.machine, self.incarnation, self.rank]
        parts += [self.evidence[name] for name in self.kind.row.identifying if name in self.evidence]
        if self.kind in NETWORK_KINDS:
            parts.append(f"{self.at:.3f}")
        return ":".join(map(str, parts))[:300]


MOST_LISTED = 1000
"""Incidents that the gateway lists at once."""


class IncidentState(StrEnum):
    """Life of an incident."""

    OPEN = "open"
    RECOVERED = "recovered"
    NEEDS_HUMAN = "needs_human"
    DISMISSED = "dismissed"
    STOPPED = "stopped"
    """The playbook decided to stop the job for good; the summary has the reason."""


class Classification(Frozen):
    """Answer of the classification policy."""

    incident_class: RecordedClass
    confidence: float = Field(ge=0, le=1)
    machine: MachineName | None = None
    """The machine of the root alert, or None when the alerts name no machine."""
    rank: Rank | None = None
    reasons: tuple[str, ...]
    root: str = ""
    """Key of the alert that the others follow from; empty: none stands out."""
    suspects: tuple[MachineName, ...] = ()
    """Machines that the alerts accuse, surely or not."""


class Incident(Frozen):
    """The unit that a playbook works on: one or more alerts of one job, correlated, with a class."""

    id: IncidentId
    job: JobName
    incident_class: RecordedClass
    state: IncidentState
    epoch: int
    """The job's epoch that the fault hit."""
    attempt: int = 1
    """Grows when the reconciler starts another run for this incident; fences older attempts."""
    machine: MachineName | None = None
    rank: Rank | None = None
    confidence: float = 0.5
    reasons: tuple[str, ...] = ()
    alerts: tuple[Alert, ...] = ()
    injected_at: float | None = None
    detected_at: float
    """When the first alert was accepted by the gateway."""
    opened_at: float
    first_task_at: float | None = None
    recovered_at: float | None = None
    """Time of the first new step after it (beyond every step done before)."""
    closed_at: float | None = None
    flow_run_id: str | None = None
    last_good_step: int | None = None
    """Newest step that may be restored (NaN, corruption); None: no bound."""
    summary: str = ""

    @property
    def machines_asked(self) -> object:
        """The number of machines that the newest alert with one asks for, as it was given; None: no alert has one."""
        asked = [alert.evidence["machines"] for alert in self.alerts if "machines" in alert.evidence]
        return asked[-1] if asked else None

    @property
    def version_asked(self) -> str | None:
        """The code version that the first alert with one asks for; None: no alert has one."""
        return next((str(a.evidence["version"]) for a in self.alerts if "version" in a.evidence), None)


class Finding(Frozen):
    """One result of one check on one machine (or pair of machines)."""

    check: str
    machine: MachineName
    ok: bool
    rank: Rank | None = None
    peer: MachineName | None = None
    """The other machine of a pair test."""
    detail: str = ""
    sure: bool = False
    """A failing check that by itself proves a machine fault (no other explanation)."""
    silent: bool = False
    """The agent did not answer: nothing was tested."""
    seconds: float = 0.0
    value: float | None = None
    """The measured value, to be compared with those of the other machines."""
    unit: str = ""
    """Of the value; a rate ends in ``/s``: more is better. Empty: a cost."""
    repeats: int = 0
    """Measurements that the value is the best of; 0: the check does not report it."""
    busy: float = 0.0
    """Share of the host's processors that others used meanwhile, where these made the value."""
    usual: float | None = None
    """Median of what this machine measured before ..."""
    usual_of: int = 0
    """... so often."""
    digest: str = ""
    """Of the bytes that came out, where machines are compared bit for bit."""
    kind: str = ""
    """Hardware and software that the value or digest is of: only equals are compared."""


class Blame(StrEnum):
    """The target of a verdict's blame."""

    NONE = "nobody"
    MACHINES = "machines"
    CODE = "code"
    """Code or data: every machine shows the fault."""


class Verdict(Frozen):
    """The result of a diagnosis."""

    suspects: tuple[MachineName, ...] = ()
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    blame: Blame = Blame.NONE
    """``machines`` whenever there are suspects."""
    ranks: tuple[Rank, ...] = ()
    """Ranks that the suspects are named for; empty: not for certain ranks."""
    sure: bool = False
    """Only the suspects explain it: they are evicted at once."""
    explained: bool = False
    """``ranks`` explain it without a fault of their machines, such as a process that a signal stopped."""
    shared: tuple[str, ...] = ()
    """Failure domains that are suspected in place of their machines, such as ``switch leaf-1``."""
    script: str = ""
    """Fault of the job's script that was seen, in words; names no machine."""
    excuse: str = ""
    """Why the ranks stand out without a fault of their machines; empty: it may be a machine's."""

    @model_validator(mode="before")
    @classmethod
    def _suspects_are_blamed(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("suspects"):
            return {**fields, "blame": Blame.MACHINES}
        return fields

    @property
    def named(self) -> str:
        """The suspects in words, or a note that there is none."""
        return ", ".join(self.suspects) or "no suspect:"


class Rung(StrEnum):
    """The rungs that a ladder may have. The policy file defines which class has which, in which order."""

    RETRY = "retry"
    """Restart in place."""
    EVICT = "evict"
    """Evict the machines that the alerts accuse, although no check proves it."""
    OLDER_STATE = "older_state"
    """Leave behind a saved state that led to the same failure again, and take an older one."""
    SKIP_DATA = "skip_data"
    """Restart in place, and skip the data at which the job failed again and again."""
    ROLLBACK = "rollback"
    REPLAY = "replay"
    HUMAN = "human"
    STOP = "stop"
    """Stop the job for good and free its machines."""
