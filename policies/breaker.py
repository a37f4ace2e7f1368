"""The eviction breaker: one bad sensor must not empty the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.models.base import Frozen
from holdfast.policies.policy import BreakerPolicy


class PastEviction(Protocol):
    """When a machine was evicted (Unix seconds)."""

    @property
    def at(self) -> float: ...  # noqa: D102


class Answer(Frozen):
    """Yes or no, and why."""

    allowed: bool
    reason: str


def may_evict(
    recent: Iterable[PastEviction | float], wanted: int, fleet_size: int, now: float, policy: BreakerPolicy
) -> Answer:
    """May ``wanted`` more machines be evicted?

    Args:
        recent: evictions (or their times) of the whole fleet; those outside the window do not count.
        wanted: machines about to be evicted.
        fleet_size: machines that exist, evicted ones included.
        now: Unix seconds.
        policy: window and limits.
    """
    times = [past if isinstance(past, float | int) else past.at for past in recent]
    done = sum(now - policy.window_s < at for at in times)
    limit = max(policy.at_least, int(policy.max_share * fleet_size))
    minutes = policy.window_s / 60
    facts = (
        f"{done} evictions in the last {minutes:g} min, {wanted} more asked, limit {limit} of {fleet_size}"
    )
    if done + wanted <= limit:
        return Answer(allowed=True, reason=facts)
    return Answer(allowed=False, reason=f"eviction breaker: {facts} machines; a human must look at the cause")
