"""The policy file: every threshold, ladder and limit, typed; the packaged values are in ``default.yaml``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from holdfast.errors import SettingsError
from holdfast.models.agent import Check
from holdfast.models.alert import AlertKind, IncidentClass, RecordedClass, Rung
from holdfast.models.base import Frozen
from holdfast.models.job import FromScratch, Mode
from holdfast.models.machine import Scope
from holdfast.policies.config.keep_processes import KeepPolicy
from holdfast.policies.config.planned_move import PlannedMovePolicy
from holdfast.policies.config.policy_file import PolicyFile, merge, parse, validate
from holdfast.policies.config.repair_policy import RepairPolicy
from holdfast.policies.config.thresholds import DetectPolicy
from holdfast.policies.config.topology import TopologyPolicy
from holdfast.policies.diagnose.pace import PaceLimits

DEFAULT_FILE = Path(__file__).parents[1] / "default.yaml"
Share = Field(gt=0, le=1)
Seconds = Field(gt=0)
ENDS = (Rung.HUMAN, Rung.STOP)


class ClassifyPolicy(Frozen):
    """How alerts become an incident class."""

    settle_s: float = Field(ge=0, le=60)
    late_s: float = Field(ge=0, le=60)
    max_age_s: float = Seconds
    user_errors: frozenset[str]
    sure_host_checks: frozenset[str]
    broken_host_checks: frozenset[str]
    pressed_host_checks: frozenset[str]
    network_checks: frozenset[str]
    network_window_s: float = Seconds


class HangPolicy(Frozen):
    """When a job without progress counts as hanging."""

    votes: int = Field(ge=1, le=4)
    factor: float = Field(ge=1)
    gap_factor: float = Field(ge=1)
    min_window_s: float = Seconds
    max_window_s: float = Seconds
    first_step_s: float = Seconds
    start_factor: float = Field(ge=1)
    start_working_s: float = Seconds
    start_bytes_s: float = Seconds
    undeclared_s: float = Seconds
    endless_s: float = Seconds
    plain_silent_s: float = Seconds
    early_end_s: float = Seconds
    blocked_s: float = Seconds
    end_s: float = Seconds
    activity_limits_s: dict[str, float]
    idle_cores: float = Field(gt=0)
    idle_most_share: float = Share
    collective_open_s: float = Seconds
    stopped_s: float = Seconds
    stacks_samples: int = Field(ge=2)
    stacks_every_s: float = Seconds
    spinning_gpu_share: float = Share
    spinning_bytes_s: float = Field(ge=0)
    spin_s: float = Seconds
    spinning_sm_share: float = Share
    quiet_s: float = Seconds
    cold_s: float = Seconds
    cold_share: float = Share

    @model_validator(mode="after")
    def _windows_are_in_order(self) -> HangPolicy:
        if self.min_window_s > self.max_window_s:
            raise ValueError(
                f"min_window_s {self.min_window_s:g} is more than max_window_s {self.max_window_s:g}"
            )
        return self


class ClassLadder(Frozen):
    """How one incident class is diagnosed and escalated."""

    tiers: tuple[Check, ...]
    """Stop-time checks, in this order, until one is sure of a culprit."""
    tiers_again: tuple[Check, ...] = ()
    """More of them, when it comes again without progress: they cost more time."""
    rungs: tuple[Rung, ...] = Field(max_length=16)
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

    @field_validator("end")
    @classmethod
    def _end_is_final(cls, end: Rung) -> Rung:
        if end not in ENDS:
            raise ValueError(
                f"expected {' or '.join(rung.value for rung in ENDS)}: {end.value} is an attempt"
            )
        return end


class OftenPolicy(Frozen):
    """When a job fails so often, whatever fails, that more is checked before each restart."""

    incidents: int = Field(ge=1)
    window_s: float = Seconds


class StandingOutPolicy(Frozen):
    """When a machine goes that only stands out in hangs, and how many of one job do."""

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
        """Return the most machines that a job of ``machines`` may lose for hangs within the window."""
        return min(self.job_at_most, max(self.job_at_least, int(self.job_share * machines)))


class FlapPolicy(Frozen):
    """When a machine that comes and goes is at fault, and kept out."""

    count: int = Field(ge=2)
    window_s: float = Seconds
    apart_s: float = Field(ge=0)
    checks_pass_s: float = Field(ge=0)


class LadderPolicy(Frozen):
    """The ladders, and what changes their order."""

    progress_steps: int = Field(ge=1)
    code_changed_s: float = Field(ge=0)
    code_suspect_s: float = Field(ge=0)
    often: OftenPolicy
    standing_out: StandingOutPolicy
    flaps: FlapPolicy
    offender: float = Field(gt=0)
    offence_half_life_s: float = Seconds
    classes: dict[IncidentClass, ClassLadder]

    def of(self, incident_class: IncidentClass) -> ClassLadder:
        """Return the ladder of one class; one that no policy file names goes to a human at once."""
        return self.classes.get(incident_class, _NO_LADDER)


_NO_LADDER = ClassLadder(tiers=(), rungs=(), end=Rung.HUMAN, scope=Scope.JOB)


class When(Frozen):
    """Alerts that mean an incident class of another package."""

    kind: AlertKind
    evidence: dict[str, str | float | bool] = Field(default_factory=dict)
    """All of it must match: equal, or among the alert's values where those are a list."""


class PlaybookPolicy(Frozen):
    """The entry of a playbook from another package."""

    when: tuple[When, ...] = ()
    """Any of these opens an incident of the class; none: only people do."""
    confidence: float = Field(0.9, gt=0, le=1)
    values: dict[str, Any] = Field(default_factory=dict)
    """Values for the playbook, which reads them as ``case.values``."""


class ApprovalRule(Frozen):
    """Evictions that a person approves first. An omitted condition holds for all."""

    incident_class: IncidentClass | None = None
    machines_over: int = Field(0, ge=0)
    """More machines than this at once."""
    scope: Scope | None = None


class ApprovalPolicy(Frozen):
    """When a playbook asks before it acts, and the default when no answer comes."""

    rules: tuple[ApprovalRule, ...]
    deadline_s: float = Seconds
    default: Literal["refuse", "approve"]


class AggregatePolicy(Frozen):
    """How many machines one analysis may name, and how stacks are read."""

    max_machines: int = Field(ge=1)
    max_share: float = Share
    dominant_share: float = Field(ge=0, lt=1)
    waiting_functions: frozenset[str]
    waiting_files: frozenset[str]

    def limit(self, machines: int) -> int:
        """Return the most machines that may be evicted at once from a job of ``machines``; at least one."""
        return max(1, min(self.max_machines, int(self.max_share * machines)))


class BreakerPolicy(Frozen):
    """Evictions per window: of the whole fleet, and from one job."""

    window_s: float = Seconds
    max_share: float = Share
    at_least: int = Field(ge=1)
    job_window_s: float = Seconds
    job_share: float = Share
    job_at_least: int = Field(ge=1)


class ReplayPolicy(Frozen):
    """Dual-phase replay."""

    steps: int = Field(ge=1)
    timeout_s: float = Seconds
    repeats: int = Field(ge=0)


class DiagnosePolicy(Frozen):
    """Stop-time checks."""

    budget_s: float = Seconds
    check_timeout_s: float = Seconds
    slow_factor: float = Field(gt=1)
    slow_rounds: int = Field(ge=1)
    slow_interval_s: float = Field(ge=0)
    service_wait_s: float = Seconds
    pace: PaceLimits

    @model_validator(mode="after")
    def _a_check_fits_the_budget(self) -> DiagnosePolicy:
        if self.check_timeout_s > self.budget_s:
            raise ValueError(
                f"check_timeout_s {self.check_timeout_s:g} is more than budget_s {self.budget_s:g}"
            )
        return self


class AgainPolicy(Frozen):
    """Pauses before an incident that met a limit is tried again."""

    pause_s: float = Seconds
    factor: float = Field(ge=1)
    longest_s: float = Seconds


class ElasticPolicy(Frozen):
    """When a job with sizes of its own (``machines: {min, want, max}``) is changed by itself."""

    grow: bool
    """Whether one below its wanted size takes standbys."""
    settled_s: float = Seconds
    """It has run so long at its present size before it grows, and before machines it left are given away."""
    keep_standbys: int = Field(ge=0)
    """Standbys that growing leaves to recoveries."""


class RecoveryPolicy(Frozen):
    """Conditions that a playbook waits for after a start."""

    first_step_timeout_s: float = Seconds


class PoisonedPolicy(Frozen):
    """When a state that can be loaded is left behind."""

    within_steps: int = Field(ge=1)
    restores: int = Field(ge=2)
    most: int = Field(ge=0)


class RestorePolicy(Frozen):
    """The state from which a job resumes when states are lost, out of reach or bad."""

    from_scratch: FromScratch
    wait_s: float = Field(ge=0)
    pause_s: float = Seconds
    longest_pause_s: float = Seconds
    most_unloadable: int = Field(ge=1)
    poisoned: PoisonedPolicy


class StandbyPolicy(Frozen):
    """Conditions that a playbook waits for before a swap, and how machines join the pool."""

    wait_s: float = Seconds
    admission: bool | Literal["auto"]
    """A machine that registers waits for the delivery checks (`admit-machine`) before it may stand by."""


class MachineGroupPolicy(Frozen):
    """A group of machines, by name, and its own settings."""

    machines: str = Field(min_length=1)
    """Shell pattern of the names: ``gpu-h-*``."""
    minimum: int | None = Field(None, ge=0)
    maximum: int | None = Field(None, ge=0)
    prior_rate: float | None = Field(None, gt=0)


class SparePoolPolicy(Frozen):
    """Size of the standby pool, the prior of the failure rate, and what standbys cost and save."""

    percentile: float = Field(gt=0, lt=1)
    replenish_h: float = Field(gt=0)
    minimum: int = Field(ge=0)
    maximum: int = Field(ge=0)
    shrink_margin: float = Field(ge=0)
    history_days: float = Field(gt=0)
    prior_rate: float = Field(gt=0)
    prior_machine_days: float = Field(gt=0)
    switch_machines: int = Field(ge=1)
    switch_weight: float = Field(ge=0, le=1)
    swap_s: float = Seconds
    reschedule_s: float = Seconds
    groups: dict[str, MachineGroupPolicy]

    @model_validator(mode="after")
    def _minimum_is_no_more_than_maximum(self) -> SparePoolPolicy:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is more than maximum {self.maximum}")
        return self


class EttrPolicy(Frozen):
    """The sliding window of ETTR."""

    window_s: float = Seconds


class ModesPolicy(Frozen):
    """How far playbooks may go."""

    default: Mode
    by_class: dict[IncidentClass, Mode]
    canary_jobs: frozenset[str]
    canary_machines: frozenset[str]


class GatewayPolicy(Frozen):
    """Patience of the gateway and its reconciler."""

    missed_heartbeats: float = Field(ge=1)
    probe_timeout_s: float = Seconds
    probe_attempts: int = Field(ge=1)
    gone_after_s: float = Seconds
    offline_after_s: float = Seconds
    pending_after_s: float = Seconds
    silent_after_s: float = Seconds
    max_attempts: int = Field(ge=1)


class Policy(Frozen):
    """All sections of a policy file."""

    classify: ClassifyPolicy
    hang: HangPolicy
    detect: DetectPolicy
    ladder: LadderPolicy
    approval: ApprovalPolicy
    aggregate: AggregatePolicy
    breaker: BreakerPolicy
    replay: ReplayPolicy
    diagnose: DiagnosePolicy
    restore: RestorePolicy
    recovery: RecoveryPolicy
    again: AgainPolicy
    elastic: ElasticPolicy
    standby: StandbyPolicy
    planned_move: PlannedMovePolicy
    topology: TopologyPolicy
    keep_processes: KeepPolicy
    repair: RepairPolicy
    spare_pool: SparePoolPolicy
    ettr: EttrPolicy
    modes: ModesPolicy
    gateway: GatewayPolicy
    playbooks: dict[RecordedClass, PlaybookPolicy]

    @model_validator(mode="after")
    def _playbooks_have_ladders(self) -> Policy:
        for name in sorted(set(self.playbooks) - set(self.ladder.classes)):
            raise ValueError(f"playbooks.{name} needs a ladder: give it one under ladder.classes.{name}")
        return self

    def without(self, broken: Collection[str]) -> Policy:
        """Return the same without the entries of playbooks that cannot run: their alerts keep their usual meaning."""
        kept = {name: entry for name, entry in self.playbooks.items() if name not in broken}
        return self.model_copy(update={"playbooks": kept})

    @classmethod
    def load(cls, path: Path | None = None, entries: Sequence[PolicyFile] = ()) -> Policy:
        """Load the packaged policy, with the ``entries`` of other packages and the changes in ``path`` (None: none).

        Raises:
            SettingsError: the file is missing or no YAML, or a key or value is wrong (named with its line
                and what is allowed).
        """
        if path is None and not entries:
            return _default()
        values = _default_values()
        for entry in entries:
            values = merge(values, entry.values)
        changes = parse(path) if path else entries[-1]
        merged = merge(values, changes.values)
        # A file that has an entry for a class knows it, whether or not its package is installed here.
        for name in merged["playbooks"] or {}:
            _declare(name, changes)
        return validate(cls, merged, changes)


def _declare(name: Any, source: PolicyFile) -> None:
    try:
        IncidentClass.declare(str(name))
    except ValueError as error:
        line = source.line_of(("playbooks", str(name)))
        raise SettingsError(
            f"policy file {source.path}" + (f", line {line}" if line else "") + f": {error}."
        ) from None


@lru_cache(maxsize=1)
def _default_values() -> dict[str, Any]:
    return parse(DEFAULT_FILE).values


@lru_cache(maxsize=1)
def _default() -> Policy:
    return validate(Policy, _default_values(), parse(DEFAULT_FILE))
