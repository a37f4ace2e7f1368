"""The base of all models: frozen, and strict about unknown fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_STEPS = 2**63 - 1
Step = Annotated[int, Field(ge=0, le=MOST_STEPS)]
"""Number of a step; scripts that count tokens need 64 bits."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number, as JSON has them: neither NaN nor infinite."""
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A number of seconds that is not negative."""
MAX_KEEP_S = 3600.0
"""Longest time that processes may wait for their next epoch."""
MAX_GRACE_S = 60.0
"""Longest time between SIGTERM and SIGKILL: the caller that stops a job waits for it."""


class Frozen(BaseModel):
    """An immutable value; an unknown field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
