"""The base of all models: frozen, and strict about unknown fields."""

from __future__ import annotations

import math
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

MOST_STEPS = 2**63 - 1
Step = Annotated[int, Field(ge=0, le=MOST_STEPS)]
"""Number of a step; scripts that count tokens need 64 bits."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number, as JSON has them: neither NaN nor infinite."""
MOST_EPOCHS = 2**31 - 1
EpochNumber = Annotated[int, Field(le=MOST_EPOCHS)]
"""Of an epoch, as a machine reports it. The ledger has 32 bits for it, and what it cannot take holds up all else."""


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Reading = Annotated[Finite | None, BeforeValidator(_or_none)]
"""A number that a sensor reports; NaN and infinities are no reading."""
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A number of seconds that is not negative."""
MAX_KEEP_S = 3600.0
"""Longest time that processes may wait for their next epoch."""
SWITCH_S = 4.0
"""Default of :attr:`~holdfast.models.agent.Fence.switch_s`."""
MAX_SWITCH_S = 60.0
MAX_GRACE_S = 60.0
"""Longest time between SIGTERM and SIGKILL: the caller that stops a job waits for it."""


class Frozen(BaseModel):
    """An immutable value; an unknown field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Given(Frozen):
    """A model that people write: ``machines: true`` (or ``yes``) is no number in it, though Python takes it for 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool):
            kind = cls.model_fields[str(info.field_name)].annotation
            kinds = {kind, *get_args(kind)}
            if bool not in kinds and kinds & {int, float}:
                raise PydanticKnownError("float_type" if float in kinds else "int_type")
        return value
