"""The same fault on one machine after the other in one place of a job: it comes with the place.

A cable, a port of the switch, the share of the work that this rank has: the next standby would meet it as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.base import Frozen
from holdfast.policies.join_names import join_names

WINDOW_S = 86_400.0
"""An eviction counts for so long."""
_ENOUGH = 2
"""Machines that went for it before; a second bad one in a row is no wonder, a third is."""


class Forerunner(Frozen):
    """An earlier eviction from the same place of the job, for the same failure."""

    incident: str
    machine: str
    at: float
    """Unix seconds."""


def why_spared(accused: str, what: str, past: Sequence[Forerunner], now: float) -> str:
    """Return why the machine is not evicted; empty: nothing is in the way.

    Args:
        accused: its name.
        what: the failure.
        past: machines that were evicted from its place for that failure, the oldest first.
        now: Unix seconds.
    """
    before = list(dict.fromkeys(each.machine for each in past if now - each.at <= WINDOW_S))
    if len(before) < _ENOUGH or accused in before:
        return ""
    return (
        f"{what} came on {join_names(before)} in the same place before: it comes with the place (cable, port, share of "
        f"the work), and {accused} is not at fault"
    )
