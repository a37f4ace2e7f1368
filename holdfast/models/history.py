"""What the ledger remembers of a job: its epochs, code versions, playbook actions; and the standby pool's size."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from holdfast.models.base import Frozen


class Epoch(Frozen):
    """One generation of a job's rank processes. Times are Unix seconds."""

    job: str
    epoch: int
    start_step: int
    """The step after which it resumed; 0: from scratch."""
    code_version: str
    machines: tuple[str, ...]
    """Machine names by slot."""
    reason: str
    """Why it was started."""
    incident_id: str | None = None
    opened_at: float
    first_step: int | None = None
    """First step that completed in it; None before that."""
    first_step_at: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    closed_at: float | None = None
    close_reason: str | None = None


class CodeVersion(Frozen):
    """A stored version of a job's code."""

    job: str
    version: str
    key: str
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


class Action(Frozen):
    """One step of a playbook that changes something, unique by (incident, key)."""

    incident_id: str
    key: str
    """Such as ``evict:m2``: the same work has the same key in every attempt."""
    kind: str
    intent: dict[str, Any] = Field(default_factory=dict)
    attempt: int = 1
    state: ActionState = ActionState.INTENT
    result: dict[str, Any] = Field(default_factory=dict)
    begun_at: float
    done_at: float | None = None


class Pool(Frozen):
    """How many standbys there should be, and why."""

    target: int = Field(ge=0)
    reason: str = ""
    at: float = 0.0
