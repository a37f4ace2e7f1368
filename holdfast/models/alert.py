"""Alerts (one signal each) and incidents (what playbooks work on)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from holdfast.models.base import Frozen


class AlertKind(StrEnum):
    """What a detector saw. The classification policy maps kinds to incident classes."""

    RANK_EXIT = (
        "rank_exit"  # evidence: exit_code, signal, traceback, error_type, user_frame, cascade, log_tail
    )
    MACHINE_LOST = "machine_lost"  # agent unreachable; evidence: missed, probe
    XID = "xid"  # evidence: xid, pci, line
    GPU_LOST = "gpu_lost"  # evidence: nvml error
    HOST_FAULT = "host_fault"  # evidence: check, value, limit
    HANG = "hang"  # evidence: signals, silent_s, window_s, ranks
    NON_FINITE = "non_finite"  # evidence: step, metric, value
    MANUAL = "manual"  # evidence: by, text, class
    CODE_UPDATE = "code_update"  # evidence: version, when (now | lazy)


class Alert(Frozen):
    """One signal from a detector or from outside."""

    kind: AlertKind
    job: str | None = None
    machine: str | None = None
    rank: int | None = None
    epoch: int | None = None
    incarnation: str | None = None
    at: float
    """When the detector saw it, seconds since the Unix epoch, on the detector's clock."""
    firing: bool = True
    fingerprint: str = ""
    """Same fault, same fingerprint: what duplicates are recognised by. Empty: derived from the fields."""
    evidence: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """The fingerprint, or one made of what identifies the signal."""
        if self.fingerprint:
            return self.fingerprint
        return f"{self.kind}:{self.job}:{self.epoch}:{self.machine}:{self.incarnation}:{self.rank}"


class IncidentClass(StrEnum):
    """One playbook each, in ``flows/`` under the same name."""

    JOB_CRASH = "job_crash"
    MACHINE_FAULT = "machine_fault"
    JOB_HANG = "job_hang"
    NAN_LOSS = "nan_loss"
    USER_CODE_ERROR = "user_code_error"
    CODE_UPDATE = "code_update"


class IncidentState(StrEnum):
    """Life of an incident."""

    OPEN = "open"
    RECOVERED = "recovered"
    NEEDS_HUMAN = "needs_human"
    DISMISSED = "dismissed"


class Classification(Frozen):
    """Answer of the classification policy."""

    incident_class: IncidentClass
    confidence: float = Field(ge=0, le=1)
    machine: str | None = None
    """The machine of the root alert, or None when the alerts name no machine."""
    rank: int | None = None
    reasons: tuple[str, ...]


class Incident(Frozen):
    """What a playbook works on: one or more alerts of one job, correlated, with a class."""

    id: str
    job: str
    incident_class: IncidentClass
    state: IncidentState
    epoch: int
    """The job's epoch that the fault hit."""
    attempt: int = 1
    """Grows when the reconciler starts another run for this incident; fences older attempts."""
    machine: str | None = None
    rank: int | None = None
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


class Finding(Frozen):
    """One result of one check on one machine (or pair of machines)."""

    check: str
    machine: str
    ok: bool
    rank: int | None = None
    peer: str | None = None
    """The other machine of a pair test."""
    detail: str = ""
    sure: bool = False
    """A failing check that by itself proves a machine fault (no other explanation)."""
    seconds: float = 0.0


class Verdict(Frozen):
    """What a diagnosis found."""

    suspects: tuple[str, ...] = ()
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def named(self) -> str:
        """The suspects in words, or that there is none."""
        return ", ".join(self.suspects) or "no suspect:"


class Rung(StrEnum):
    """The ladder, lowest first."""

    RETRY = "retry"
    ROLLBACK = "rollback"
    REPLAY = "replay"
    HUMAN = "human"
