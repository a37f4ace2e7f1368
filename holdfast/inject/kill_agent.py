"""A machine's agent dies, as from the kernel's out-of-memory killer; its ranks are left without it."""

from __future__ import annotations

from holdfast.inject import stop
from holdfast.inject.target import Target


def strike(target: Target, rank: int | None) -> None:
    """Kill the agent's process (SIGKILL)."""
    stop.agent_of(target).kill()
