"""Sections of the policy file about escalation: ladders, repeated faults, playbooks of packages, approvals."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from holdfast.models.agent import Check
from holdfast.models.alert import AlertKind, IncidentClass, Rung
from holdfast.models.base import Given
from holdfast.models.machine import Scope
from holdfast.policies.config.units import Seconds, Share

ENDS = (Rung.HUMAN, Rung.STOP)
ATTEMPTS = tuple(rung for rung in Rung if rung not in (*ENDS, Rung.SKIP_DATA, Rung.OLDER_STATE))
"""Rungs that a ladder may list."""


def _known(rung: object) -> object:
    """Refuse what is no rung by those that may be listed: an enum's own message has all of them."""
    if rung not in [*Rung, *(each.value for each in Rung)]:
        raise ValueError(f"expected one of {', '.join(each.value for each in ATTEMPTS)}")
    return rung


class ClassLadder(Given):
    """How one incident class is diagnosed and escalated."""

    tiers: tuple[Check, ...]
    """Stop-time checks, in this order, until one is sure of a culprit."""
    tiers_again: tuple[Check, ...] = ()
    """More of them, when it comes again without progress: they cost more time."""
    rungs: tuple[Annotated[Rung, BeforeValidator(_known)], ...] = Field(max_length=16)
    """Attempts when no check names a culprit. Each entry is one attempt without progress."""
    end: Rung
    """When all are spent: ``human`` or ``stop``."""
    scope: Scope
    """Jobs that an eviction keeps away from the machine: this one, or the whole cluster's."""
    accuse_slow: bool = False
    """A check that is much slower than elsewhere accuses its machine (else it is only noted)."""

    @field_validator("rungs")
    @classmethod
    def _rungs_are_attempts(cls, rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
        ends = [rung.value for rung in rungs if rung in ENDS]
        if ends:
            raise ValueError(f"{ends[0]} is not an attempt: put it into `end`, after all rungs")
        if Rung.SKIP_DATA in rungs:
            raise ValueError(
                "skip_data cannot be listed as an attempt: `skip_bad_batches` of a job file allows it"
            )
        if Rung.OLDER_STATE in rungs:
            raise ValueError(
                "older_state cannot be listed as an attempt: `restore.poisoned` says when it is due"
            )
        return rungs

    @field_validator("end", mode="before")
    @classmethod
    def _end_is_final(cls, end: object) -> object:
        if end not in [*ENDS, *(rung.value for rung in ENDS)]:
            attempt = f": {end} is an attempt" if end in [rung.value for rung in Rung] else ""
            raise ValueError(f"expected {' or '.join(rung.value for rung in ENDS)}{attempt}")
        return end


class OftenPolicy(Given):
    """When a job fails so often, whatever fails, that more is checked before each restart."""

    incidents: int = Field(ge=1)
    window_s: float = Seconds


class RegularPolicy(Given):
    """When failures that come after about as many steps each time count as one that grows in the job."""

    count: int = Field(ge=3)
    look: int = Field(ge=3)
    within: float = Share


class StandingOutPolicy(Given):
    """When a machine goes that only stands out in hangs or by its pace, and how many of one job do."""

    accusations: int = Field(ge=1)
    window_s: float = Seconds
    job_share: float = Share
    job_at_least: int = Field(ge=1)
    job_at_most: int = Field(ge=1)

    @model_validator(mode="after")
    def _least_is_no_more_than_most(self) -> StandingOutPolicy:
        if self.job_at_least > self.job_at_most:
            raise ValueError(f"job_at_least {self.job_at_least} is more than job_at_most {self.job_at_most}")
        return self

    def limit(self, machines: int) -> int:
        """Return the most machines that a job of ``machines`` may lose for that within the window."""
        return min(self.job_at_most, max(self.job_at_least, int(self.job_share * machines)))


class FlapPolicy(Given):
    """When a machine that comes and goes is at fault, and kept out."""

    count: int = Field(ge=2)
    window_s: float = Seconds
    apart_s: float = Field(ge=0)
    checks_pass_s: float = Field(ge=0)


class GpuErrorsPolicy(Given):
    """When a machine goes whose ranks are ended by errors of the GPU, while its checks pass."""

    count: int = Field(ge=2)
    window_s: float = Seconds


class LadderPolicy(Given):
    """The ladders, and what changes their order."""

    progress_steps: int = Field(ge=1)
    progress_s: float = Field(gt=0)
    code_changed_s: float = Field(ge=0)
    code_suspect_s: float = Field(ge=0)
    often: OftenPolicy
    regular: RegularPolicy
    standing_out: StandingOutPolicy
    flaps: FlapPolicy
    gpu_errors: GpuErrorsPolicy
    only_machine_s: float = Seconds
    offender: float = Field(gt=0)
    offence_half_life_s: float = Seconds
    classes: dict[IncidentClass, ClassLadder]

    def of(self, incident_class: IncidentClass) -> ClassLadder:
        """Return the ladder of one class; one that no policy file names goes to a human at once."""
        return self.classes.get(incident_class, _NO_LADDER)


_NO_LADDER = ClassLadder(tiers=(), rungs=(), end=Rung.HUMAN, scope=Scope.JOB)


class When(Given):
    """Alerts that mean an incident class of another package."""

    kind: AlertKind
    evidence: dict[str, str | float | bool] = Field(default_factory=dict)
    """All of it must match: equal, or among the alert's values where those are a list."""


class PlaybookPolicy(Given):
    """The entry of a playbook from another package."""

    when: tuple[When, ...] = ()
    """Any of these opens an incident of the class; none: only people do."""
    confidence: float = Field(0.9, gt=0, le=1)
    values: dict[str, Any] = Field(default_factory=dict)
    """Values for the playbook, which reads them as ``case.values``."""


class ApprovalRule(Given):
    """Evictions that a person approves first. An omitted condition holds for all."""

    incident_class: IncidentClass | None = None
    machines_over: int = Field(0, ge=0)
    """More machines than this at once."""
    scope: Scope | None = None
    dead_too: bool = True
    """Whether machines count that are dead for sure, and whose places standbys can take."""


class ApprovalPolicy(Given):
    """When a playbook asks before it acts, and the default when no answer comes."""

    rules: tuple[ApprovalRule, ...]
    deadline_s: float = Seconds
    default: Literal["refuse", "approve"]
