"""Admission: whether machines must pass delivery checks before they stand by, and when new ones are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

TOGETHER_S = 1.0
"""Machines that come within this of each other are checked together: they check each other's links."""
AT_LATEST_S = 10.0
"""Seconds after which a waiting machine is checked, even if others are still coming."""

HARDWARE_OF_THEIR_OWN = "auto"


def waits(admission: bool | Literal["auto"], driver: str) -> bool:
    """Return whether a machine that registers waits for the checks.

    ``auto``: where machines are hardware of their own. The ``local`` driver's are processes of one host, whose checks
    would only take time from each other.
    """
    return driver != "local" if admission == HARDWARE_OF_THEIR_OWN else bool(admission)


def due(registered_at: Mapping[str, float], now: float) -> list[str]:
    """Return the waiting machines that are checked now: none while more are coming, else all.

    Args:
        registered_at: when each registered (Unix seconds).
        now: Unix seconds.
    """
    if not registered_at:
        return []
    newest, oldest = max(registered_at.values()), min(registered_at.values())
    return list(registered_at) if now - newest >= TOGETHER_S or now - oldest >= AT_LATEST_S else []
