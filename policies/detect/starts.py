"""Durations of a job's starts: what a start that takes long is compared with."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.models.history import Epoch

LOOK_BACK = 50
"""Newest epochs."""


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
