"""Sections of the policy file about diagnosis: who is accused, by which checks and replays, how many are evicted."""

from __future__ import annotations

from pydantic import Field, model_validator

from holdfast.models.base import Given
from holdfast.policies.config.units import Seconds, Share
from holdfast.policies.diagnose.pace import PaceLimits


class AggregatePolicy(Given):
    """How many machines one analysis may name, and how stacks are read."""

    max_machines: int = Field(ge=1)
    max_share: float = Share
    small_job: int = Field(ge=1)
    dominant_share: float = Field(ge=0, lt=1)
    waiting_functions: frozenset[str]
    waiting_files: frozenset[str]

    def limit(self, machines: int) -> int:
        """Return the most machines that may be evicted at once from a job of ``machines``; at least one."""
        return max(1, min(self.max_machines, int(self.max_share * machines)))

    def sure_limit(self, machines: int) -> int:
        """Return the most machines that may be evicted at once by signs that prove each of them broken."""
        return machines if 0 < machines <= self.small_job else self.limit(machines)


class BreakerPolicy(Given):
    """Evictions per window: of the whole fleet, and from one job."""

    window_s: float = Seconds
    max_share: float = Share
    at_least: int = Field(ge=1)
    job_window_s: float = Seconds
    job_share: float = Share
    job_at_least: int = Field(ge=1)


class ReplayPolicy(Given):
    """Dual-phase replay."""

    steps: int = Field(ge=1)
    timeout_s: float = Seconds
    repeats: int = Field(ge=0)


class DiagnosePolicy(Given):
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
