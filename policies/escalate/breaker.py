"""The eviction breaker: one bad sensor must not empty the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.models.base import Frozen
from holdfast.policies.config.diagnosis import BreakerPolicy
from holdfast.policies.counted import counted


class PastEviction(Protocol):
    """When a machine was evicted (Unix seconds)."""

    @property
    def at(self) -> float: ...  # noqa: D102


class BreakerAnswer(Frozen):
    """The answer, and its reason."""

    allowed: bool
    reason: str
    again_at: float | None = None
    """When it is allowed again, if nothing else happens (Unix seconds); None: not by waiting."""


def may_evict(
    recent: Iterable[PastEviction | float], wanted: int, fleet_size: int, now: float, policy: BreakerPolicy
) -> BreakerAnswer:
    """Decide whether ``wanted`` more machines may be evicted.

    Args:
        recent: evictions (or their times) of the whole fleet; those outside the window do not count.
        wanted: machines about to be evicted.
        fleet_size: machines that exist, evicted ones included.
        now: Unix seconds.
        policy: window and limits.
    """
    limit = max(policy.at_least, int(policy.max_share * fleet_size))
    return _within(recent, wanted, (limit, fleet_size, "machines"), now, policy.window_s)


def may_evict_from_job(
    recent: Iterable[PastEviction | float], wanted: int, job_size: int, now: float, policy: BreakerPolicy
) -> BreakerAnswer:
    """Decide the same for one job of ``job_size`` machines. ``recent``: evictions from it alone."""
    limit = max(policy.job_at_least, int(policy.job_share * job_size))
    return _within(recent, wanted, (limit, job_size, "machines of the job"), now, policy.job_window_s)


def _within(
    recent: Iterable[PastEviction | float],
    wanted: int,
    limit: tuple[int, int, str],
    now: float,
    window_s: float,
) -> BreakerAnswer:
    """Apply ``limit``: how many, of how many, of what."""
    most, size, what = limit
    times = sorted(past if isinstance(past, float | int) else past.at for past in recent)
    within = [at for at in times if now - window_s < at]
    past = f"{counted(len(within), 'eviction', 'evictions')} in the last {window_s / 60:g} min"
    facts = f"{past}, {wanted} more asked, limit {most} of {size}"
    if len(within) + wanted <= most:
        return BreakerAnswer(allowed=True, reason=facts)
    over = len(within) + wanted - most
    return BreakerAnswer(
        allowed=False,
        reason=f"eviction breaker: {facts} {what}; a human must look at the cause",
        # When so many have left the window that it holds no longer; never, for more at once than are allowed.
        again_at=within[over - 1] + window_s if over <= len(within) else None,
    )
