"""Environment variables and arguments that a job or a role gives its processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

OF_RANKS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
    }
)
"""By these a rank knows which one it is, and finds the others: the agent sets them for each."""
OF_AGENTS = frozenset(
    f"HOLDFAST_{name}"
    for name in (
        *(
            "JOB",
            "EPOCH",
            "MACHINE",
            "AGENT_SOCKET",
            "CONTROL",
            "SHARDS",
            "RESTORE",
            "REPLAY_STEPS",
            "S3_EVERY",
        ),
        *("MEMORY_EVERY", "MAX_OVERHEAD", "SKIP_STEPS", "COPIES", "PEER"),
        *("ROLE", "ROLE_INDEX", "ROLE_GENERATION", "ROLES", "ROLE_HOST"),
    )
)
"""By these a process knows its agent."""


def not_yours(names: Iterable[str], *, of_ranks: bool) -> str:
    """Return which of these variables an agent sets itself, as a refusal; empty: none.

    Asked at submission, and not part of the type: a job that is recorded with one must still be read.
    """
    refused = OF_RANKS | OF_AGENTS if of_ranks else OF_AGENTS
    found = sorted(refused.intersection(names))
    return f"{', '.join(found)}: set by the agent for each process; leave it out" if found else ""


def _can_be_set(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r}: expected a variable's name, without '=' and NUL")
        if "\0" in value:
            raise ValueError(f"{name} = {value!r}: expected a text without NUL")
    return variables


Environment = Annotated[dict[str, str], AfterValidator(_can_be_set)]
"""By name; refused is what no process can be started with."""


def _can_be_passed(arguments: tuple[str, ...]) -> tuple[str, ...]:
    for argument in arguments:
        if "\0" in argument:
            raise ValueError(f"{argument!r}: expected a text without NUL")
    return arguments


Arguments = Annotated[tuple[str, ...], AfterValidator(_can_be_passed)]
"""Of a script; refused is what no process can be started with."""
