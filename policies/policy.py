"""The policy file: every threshold, ladder and limit, typed; the packaged values are in ``default.yaml``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from holdfast.models.alert import IncidentClass, Rung
from holdfast.models.base import Frozen
from holdfast.models.job import Mode
from holdfast.policies.policy_file import merge, parse, validate

DEFAULT_FILE = Path(__file__).with_name("default.yaml")
Share = Field(gt=0, le=1)
Seconds = Field(gt=0)


class ClassifyPolicy(Frozen):
    """How alerts become an incident class."""

    settle_s: float = Field(ge=0, le=60)
    max_age_s: float = Seconds
    user_errors: frozenset[str]
    sure_host_checks: frozenset[str]
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
    activity_limits_s: dict[str, float]
    idle_cores: float = Field(gt=0)
    idle_most_share: float = Share
    collective_open_s: float = Seconds
    stopped_s: float = Seconds


class LadderPolicy(Frozen):
    """Attempts per rung without progress, and what progress is."""

    progress_steps: int = Field(ge=1)
    attempts: dict[Rung, int]


class AggregatePolicy(Frozen):
    """How many machines one analysis may name, and how stacks are read."""

    max_machines: int = Field(ge=1)
    max_share: float = Share
    dominant_share: float = Field(ge=0, lt=1)
    waiting_functions: frozenset[str]
    waiting_files: frozenset[str]

    def limit(self, machines: int) -> int:
        """Most machines that may be evicted at once from a job of ``machines``; at least one."""
        return max(1, min(self.max_machines, int(self.max_share * machines)))


class BreakerPolicy(Frozen):
    """Evictions of the whole fleet per window."""

    window_s: float = Seconds
    max_share: float = Share
    at_least: int = Field(ge=1)


class ReplayPolicy(Frozen):
    """Dual-phase replay."""

    steps: int = Field(ge=1)
    timeout_s: float = Seconds
    repeats: int = Field(ge=0)


class DiagnosePolicy(Frozen):
    """Stop-time checks."""

    budget_s: float = Seconds
    check_timeout_s: float = Seconds


class RecoveryPolicy(Frozen):
    """What a playbook waits for after a start."""

    first_step_timeout_s: float = Seconds


class StandbyPolicy(Frozen):
    """What a playbook waits for before a swap."""

    wait_s: float = Seconds


class SparePoolPolicy(Frozen):
    """Size of the standby pool and the prior of the failure rate."""

    percentile: float = Field(gt=0, lt=1)
    minimum: int = Field(ge=0)
    maximum: int = Field(ge=0)
    history_days: float = Field(gt=0)
    prior_failures: float = Field(gt=0)
    prior_machine_days: float = Field(gt=0)


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

    missed_heartbeats: int = Field(ge=1)
    probe_timeout_s: float = Seconds
    probe_attempts: int = Field(ge=1)
    offline_after_s: float = Seconds
    pending_after_s: float = Seconds
    silent_after_s: float = Seconds
    max_attempts: int = Field(ge=1)


class Policy(Frozen):
    """All sections of a policy file."""

    classify: ClassifyPolicy
    hang: HangPolicy
    ladder: LadderPolicy
    aggregate: AggregatePolicy
    breaker: BreakerPolicy
    replay: ReplayPolicy
    diagnose: DiagnosePolicy
    recovery: RecoveryPolicy
    standby: StandbyPolicy
    spare_pool: SparePoolPolicy
    ettr: EttrPolicy
    modes: ModesPolicy
    gateway: GatewayPolicy

    @classmethod
    def load(cls, path: Path | None = None) -> Policy:
        """The packaged policy, with what ``path`` changes (None: nothing).

        Raises:
            SettingsError: the file is missing or no YAML, or a key or value is wrong (named with its line
                and what is allowed).
        """
        if path is None:
            return _default()
        changes = parse(path)
        return validate(cls, merge(_default_values(), changes.values), changes)


@lru_cache(maxsize=1)
def _default_values() -> dict[str, Any]:
    return parse(DEFAULT_FILE).values


@lru_cache(maxsize=1)
def _default() -> Policy:
    return validate(Policy, _default_values(), parse(DEFAULT_FILE))
