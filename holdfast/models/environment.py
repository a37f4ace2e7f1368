"""Environment variables that a job or a role gives its processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _can_be_set(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r}: expected a variable's name, without '=' and NUL")
        if "\0" in value:
            raise ValueError(f"{name} = {value!r}: expected a text without NUL")
    return variables


Environment = Annotated[dict[str, str], AfterValidator(_can_be_set)]
"""By name; refused is what no process can be started with."""
