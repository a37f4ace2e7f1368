"""Choice of the saves at which a job's replicas are compared: often at first, to learn, then every so many steps.

All machines come to the same answer by themselves: from the steps since the epoch began, the same on all ranks.
"""

from __future__ import annotations

SETTLED_STEPS = 8
"""A job that resumes compares nothing before so many steps: what replicas hold alike is known from before, and the
first steps after a recovery should have the processors."""


def round_of(steps: int, every: int, *, resumed: bool = False) -> int:
    """Return the round of a save, so many ``steps`` after the epoch began; the first save of a round is compared.

    Rounds double from the first step (:data:`SETTLED_STEPS` where the job ``resumed``) up to ``every`` steps, and are
    that long from there on. 0: none.
    """
    if every < 1 or steps < (min(SETTLED_STEPS, every) if resumed else 1):
        return 0
    return steps.bit_length() if steps < every else (every - 1).bit_length() + steps // every


def interval(every: int, s3_every: int, keep_last: int) -> int:
    """Return steps from one comparison to the next, so that a checkpoint from before a difference is still in S3.

    Args:
        every: steps, as set in the policy; 0: never.
        s3_every: steps between checkpoints in S3; 0: there are none.
        keep_last: number of them that are kept.
    """
    return min(every, s3_every * max(1, keep_last - 1)) if s3_every else every
