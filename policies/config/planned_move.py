"""The section of planned moves in the policy file."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, field_validator

from holdfast.models.agent import Check
from holdfast.models.alert import MACHINE_KINDS, AlertKind, MoveSource
from holdfast.models.base import Given


class Fate(StrEnum):
    """Next state of a machine that a job was moved away from."""

    STANDBY = "standby"
    """It goes back to the standby pool."""
    CORDON = "cordon"
    """It is handed back through the driver and kept from jobs until it is released or comes back."""
    REPAIR = "repair"
    """The same, and a repair is ordered."""


class PlannedMovePolicy(Given):
    """How a job leaves a machine that still works."""

    checks: tuple[Check, ...]
    checks_hurried: tuple[Check, ...]
    hurried_s: float = Field(gt=0)
    most_tried: int = Field(ge=1)
    ahead: bool
    ahead_on_gpus: bool
    bring_s: float = Field(gt=0, le=3600)
    copy_s: float = Field(ge=0)
    margin_s: float = Field(ge=0)
    precursors: frozenset[AlertKind]
    afterwards: dict[MoveSource, Fate]

    @field_validator("precursors")
    @classmethod
    def _precursors_are_of_machines(cls, precursors: frozenset[AlertKind]) -> frozenset[AlertKind]:
        if wrong := sorted(kind.value for kind in precursors - MACHINE_KINDS):
            raise ValueError(f"{wrong[0]} is no sign of a machine, such as gpu_ecc_correctable")
        return precursors

    @field_validator("afterwards")
    @classmethod
    def _every_source_has_a_fate(cls, afterwards: dict[MoveSource, Fate]) -> dict[MoveSource, Fate]:
        if missing := [each.value for each in MoveSource if each not in afterwards]:
            raise ValueError(f"{missing[0]} is missing: say what becomes of the machine ({', '.join(Fate)})")
        return afterwards
