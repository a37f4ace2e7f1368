"""Progress of a job that reports no steps, such as a plain script of torchrun: how long its ranks ran."""

from __future__ import annotations

_ALIKE = 0.1
"""Two runs whose lengths differ by less than this share of the longer one ended at one place of the training."""


def progressed(ran_s: float, before_s: float, least_s: float, *, from_outside: bool) -> bool:
    """Return whether a run that ended in a failure counts as progress since the failure before it.

    Args:
        ran_s: how long the run was.
        before_s: how long the run was that ended in the failure before.
        least_s: shorter runs are no progress.
        from_outside: a signal from outside ended it, which has no place in the training.
    """
    if ran_s < least_s:
        return False
    return from_outside or abs(ran_s - before_s) >= _ALIKE * max(ran_s, before_s)
