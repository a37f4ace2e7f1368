"""The policy file: every threshold, ladder and limit, typed; the packaged values are in ``default.yaml``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from holdfast.errors import SettingsError
from holdfast.models.alert import IncidentClass, RecordedClass
from holdfast.models.base import Given
from holdfast.models.job import FromScratch, Mode
from holdfast.policies.config.diagnosis import AggregatePolicy, BreakerPolicy, DiagnosePolicy, ReplayPolicy
from holdfast.policies.config.keep_processes import KeepPolicy
from holdfast.policies.config.ladders import ApprovalPolicy, LadderPolicy, PlaybookPolicy
from holdfast.policies.config.planned_move import PlannedMovePolicy
from holdfast.policies.config.policy_file import PolicyFile, merge, parse, validate
from holdfast.policies.config.pool import ElasticPolicy, SparePoolPolicy, StandbyPolicy
from holdfast.policies.config.repair_policy import RepairPolicy
from holdfast.policies.config.thresholds import DetectPolicy
from holdfast.policies.config.topology import TopologyPolicy
from holdfast.policies.config.units import Seconds, Share

DEFAULT_FILE = Path(__file__).parents[1] / "default.yaml"


class ClassifyPolicy(Given):
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


class HangPolicy(Given):
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


class AgainPolicy(Given):
    """Pauses before an incident that met a limit is tried again."""

    pause_s: float = Seconds
    factor: float = Field(ge=1)
    longest_s: float = Seconds


class RecoveryPolicy(Given):
    """Conditions that a playbook waits for after a start."""

    first_step_timeout_s: float = Seconds


class PoisonedPolicy(Given):
    """When a state that can be loaded is left behind."""

    within_steps: int = Field(ge=1)
    restores: int = Field(ge=2)
    most: int = Field(ge=0)


class RestorePolicy(Given):
    """The state from which a job resumes when states are lost, out of reach or bad."""

    from_scratch: FromScratch
    wait_s: float = Field(ge=0)
    pause_s: float = Seconds
    longest_pause_s: float = Seconds
    most_unloadable: int = Field(ge=1)
    poisoned: PoisonedPolicy


class EttrPolicy(Given):
    """The sliding window of ETTR."""

    window_s: float = Seconds


class ModesPolicy(Given):
    """How far playbooks may go."""

    default: Mode
    by_class: dict[IncidentClass, Mode]
    canary_jobs: frozenset[str]
    canary_machines: frozenset[str]


class GatewayPolicy(Given):
    """Patience of the gateway and its reconciler."""

    missed_heartbeats: float = Field(ge=1)
    probe_timeout_s: float = Seconds
    probe_attempts: int = Field(ge=1)
    longest_lease_s: float = Seconds
    gone_after_s: float = Seconds
    offline_after_s: float = Seconds
    pending_after_s: float = Seconds
    silent_after_s: float = Seconds
    max_attempts: int = Field(ge=1)


class Policy(Given):
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
