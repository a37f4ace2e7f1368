"""Kinds of numbers in the policy file."""

from __future__ import annotations

from pydantic import Field

Share = Field(gt=0, le=1)
Seconds = Field(gt=0)
