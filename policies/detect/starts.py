"""Durations of a job's starts: what a start that takes long is compared with, and whether its ranks work meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.agent import RankState
from holdfast.models.history import Epoch
from holdfast.policies.config.policy import HangPolicy

LOOK_BACK = 50
"""Newest epochs."""
AS_BEFORE = 1.5
"""Factor: a restart may take so much longer than the longest start, which had everything to prepare."""


def longest_s(epochs: Iterable[Epoch], since: float) -> float:
    """Seconds of the longest start that came to a first step; 0: there is none.

    Args:
        epochs: of the job, oldest first.
        since: when the job was submitted (Unix seconds).
    """
    mine = [each for each in epochs if each.opened_at >= since][-LOOK_BACK:]
    return max(
        (each.first_step_at - each.opened_at for each in mine if each.first_step_at is not None), default=0.0
    )


def allowed_s(longest_start_s: float, least_s: float, policy: HangPolicy) -> float:
    """Return how long a restart may take without a step of every rank, in seconds.

    Args:
        longest_start_s: of the job so far (:func:`longest_s`).
        least_s: for any job.
        policy: bounds it.
    """
    return max(least_s, min(AS_BEFORE * longest_start_s, policy.start_working_s))


def prepares(before: RankState, now: RankState, passed_s: float, policy: HangPolicy) -> bool:
    """Return whether a rank without a step visibly works: what it started uses processors, or bytes are moved.

    Its own processor use is no sign: a rank also spins while it waits for a peer.
    """
    if now.steps_done or now.pid != before.pid or passed_s <= 0:
        return False
    children = (now.children_cpu_s - before.children_cpu_s) / passed_s
    moved = (now.io_bytes - before.io_bytes) / passed_s
    return children >= policy.idle_cores or moved >= policy.start_bytes_s


def never_reported(epochs: Iterable[Epoch], since: float) -> bool:
    """Return whether no step of the job was ever reported: it may have no Session.

    Args:
        epochs: of the job.
        since: when the job was submitted (Unix seconds).
    """
    return not any(each.last_step is not None for each in epochs if each.opened_at >= since)
