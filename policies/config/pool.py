"""Sections of the policy file about machines: standbys, groups, the size of the pool, elastic jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from holdfast.models.base import Given
from holdfast.policies.config.units import Seconds


class ElasticPolicy(Given):
    """When a job with sizes of its own (``machines: {min, want, max}``) is changed by itself."""

    grow: bool
    """Whether one below its wanted size takes standbys."""
    settled_s: float = Seconds
    """It has run so long at its present size before it grows, and before machines it left are given away."""
    keep_standbys: int = Field(ge=0)
    """Standbys that growing leaves to recoveries."""


class StandbyPolicy(Given):
    """Conditions that a playbook waits for before a swap, and how machines join the pool."""

    wait_s: float = Seconds
    admission: bool | Literal["auto"]
    """A machine that registers waits for the delivery checks (`admit-machine`) before it may stand by."""


class MachineGroupPolicy(Given):
    """A group of machines, by name, and its own settings."""

    machines: str = Field(min_length=1)
    """Shell pattern of the names: ``gpu-h-*``."""
    minimum: int | None = Field(None, ge=0)
    maximum: int | None = Field(None, ge=0)
    prior_rate: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _minimum_is_no_more_than_maximum(self) -> MachineGroupPolicy:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is more than maximum {self.maximum}")
        return self


class SparePoolPolicy(Given):
    """Size of the standby pool, the prior of the failure rate, and what standbys cost and save."""

    percentile: float = Field(gt=0, lt=1)
    replenish_h: float = Field(gt=0)
    minimum: int = Field(ge=0)
    maximum: int = Field(ge=0)
    shrink_margin: float = Field(ge=0)
    history_days: float = Field(gt=0)
    busy_h: float = Field(ge=0)
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
