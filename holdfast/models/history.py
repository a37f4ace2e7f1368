"""The ledger's records of a job: its epochs, code versions, playbook actions; and the standby pool's size."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from holdfast.models.alert import Incident
from holdfast.models.base import Frozen
from holdfast.models.job import JobState
from holdfast.models.names import IncidentId, JobName, MachineName, ObjectKey, Version


class Epoch(Frozen):
    """One generation of a job's rank processes. Times are Unix seconds."""

    job: JobName
    epoch: int
    start_step: int
    """The step after which it resumed; 0: from scratch."""
    code_version: Version
    machines: tuple[MachineName, ...]
    """Machine names by slot."""
    reason: str
    """Why it was started."""
    incident_id: IncidentId | None = None
    opened_at: float
    first_step: int | None = None
    """First step that completed in it; None before that."""
    first_step_at: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    closed_at: float | None = None
    close_reason: str | None = None

    @property
    def reached(self) -> int:
        """Newest step that was complete in it, or that it began with."""
        return max(self.start_step, self.last_step or 0)


class Stretch(Frozen):
    """Consecutive steps of one epoch, from step reports. Unix seconds of the gateway's clock."""

    job: JobName
    epoch: int
    first_step: int
    last_step: int
    begun_at: float
    """When its first step began."""
    ended_at: float
    stall_s: float = 0.0
    """How long training stood still for checkpoints in it."""


class StateChange(Frozen):
    """A job entered a state."""

    job: JobName
    state: JobState
    at: float


class CodeVersion(Frozen):
    """A stored version of a job's code."""

    job: JobName
    version: Version
    key: ObjectKey
    """Key of its archive in S3."""
    note: str = ""
    by: str = ""
    created_at: float
    bad: bool = False
    bad_reason: str = ""


class ActionState(StrEnum):
    """An action is written down before it is done, and again when its result was observed."""

    INTENT = "intent"
    DONE = "done"
    FAILED = "failed"


AGAIN = "~"
"""Before the number of an act that an incident repeats on a machine that came back as another one."""


def machine_of(key: str) -> str:
    """Return the machine of an eviction's or a swap's key: ``evict:m2``, and ``evict:m2~2`` once it came back."""
    return key.partition(":")[2].partition(AGAIN)[0]


class Action(Frozen):
    """One step of a playbook that changes something, unique by (incident, key)."""

    incident_id: IncidentId
    key: str
    """Such as ``evict:m2``: the same work has the same key in every attempt."""
    kind: str
    intent: dict[str, Any] = Field(default_factory=dict)
    attempt: int = 1
    state: ActionState = ActionState.INTENT
    result: dict[str, Any] = Field(default_factory=dict)
    begun_at: float
    done_at: float | None = None

    @property
    def waited_s(self) -> float:
        """How much of it was spent waiting for machines or people, from its begin on (seconds)."""
        return float(self.result.get("waited_s") or 0.0)


class Offence(Frozen):
    """One time that a machine was accused and evicted, in any job."""

    machine: MachineName
    at: float
    """Unix seconds."""


class Pool(Frozen):
    """How many standbys there should be, and why."""

    target: int = Field(ge=0)
    """Of all groups together."""
    reason: str = ""
    at: float = 0.0
    groups: dict[str, int] = Field(default_factory=dict)
    """Target of each group of machines; empty: there is one group, of all machines."""


BY_HEADER = "x-holdfast-by"
"""Header in which the command line names the person who asks, percent-encoded."""


class ByHand(Frozen):
    """A request of a person: name, time, reason and origin."""

    id: int
    at: float
    """When it was asked for, Unix seconds."""
    by: str
    """The name that the person gave."""
    via: str
    """``page`` or ``api`` (the command line)."""
    source: str = ""
    """Address that the request came from."""
    act: str
    """``evict``, ``release``, ``approve``, ``refuse``, ``alert``, ``login``, ``logout``; of a job
    ``submit``, ``pause``, ``resume``, ``stop``, ``update``."""
    target: str
    """The machine, incident, job or login."""
    reason: str
    state: ActionState = ActionState.INTENT
    outcome: str = ""
    """The outcome, or why it was not done."""
    done_at: float | None = None


class History(Frozen):
    """The records that a job's time is accounted from: all since its submission, oldest first, without alerts."""

    epochs: tuple[Epoch, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    incidents: tuple[Incident, ...] = ()
    actions: tuple[Action, ...] = ()
    states: tuple[StateChange, ...] = ()
    want: int = 0
    """Machines that the job wants now; 0: unknown."""
