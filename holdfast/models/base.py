"""The base of all models: frozen, and strict about unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value; an unknown field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
