"""A slow job that was stopped for a search which found no machine: it is not stopped for the same search again soon.

A search with the job stopped takes minutes. What it did not find, and a restart did not fix (a network or a file
system that others use too, longer samples), it does not find ten minutes later either; the job would be stopped for it
all night.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.base import Frozen
from holdfast.policies.escalate.waits import duration

FOR_S = 86_400.0
"""A search counts for so long."""


class Look(Frozen):
    """An earlier incident of a slow pace, of the same code on the same machines. Times are Unix seconds."""

    incident: str
    opened_at: float
    until: float
    """When it was closed, or when further signals were taken again after it."""
    stopped: bool
    """The job was stopped for it."""
    found: bool
    """A machine was evicted for it."""


def why_not_again(now: float, looks: Sequence[Look], helped_s: float) -> str:
    """Return why the job is not stopped for another search; empty: it is.

    Args:
        now: when it was found to be slow (Unix seconds).
        looks: earlier ones, oldest first.
        helped_s: a job that was not slow again for so long was helped by its restart.
    """
    later = now
    for look in reversed(looks):
        if later - look.until > helped_s or look.found:
            return ""
        if look.stopped:
            since_s = now - look.opened_at
            if since_s > FOR_S:
                return ""
            return (
                f"it was stopped for a search {duration(since_s)} before ({look.incident}), which found no machine at "
                "fault, and is slow again: not stopped for another one"
            )
        later = look.opened_at
    return ""
