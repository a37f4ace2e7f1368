"""Choice of the due steps that a rank uploads when the store takes longer than there is time between two of them.

Each rank decides alone, yet only a step that all ranks upload becomes a checkpoint. So a rank that is still busy
halves its rate, and uploads only at multiples of (steps between uploads x 1, 2, 4, ...): the steps of a slower rank
are always among those of a faster one, however slow each rank is.

Where saves take longer than steps, few multiples are saved at all, or none: a step is due that is the first to be
saved by all ranks at or after one.
"""

from __future__ import annotations

from holdfast.models.base import Frozen

SLOWEST = 1024


def is_due(step: int, since: int, every: int) -> bool:
    """Return whether ``step`` is the first saved one at or after a multiple of ``every`` (0: there is none).

    Args:
        step: one that all ranks saved.
        since: the one before it that they saved, or that they began with.
        every: steps.
    """
    return every > 0 and step // every > since // every


class Pace(Frozen):
    """How often one rank uploads."""

    stride: int = 1
    """A power of two: every so many due steps."""

    def due(self, step: int, since: int, every: int) -> bool:
        """Return whether ``step`` is to be uploaded, with an upload wanted ``every`` so many steps: :func:`is_due`."""
        return is_due(step, since, every * self.stride)

    def skipped(self) -> Pace:
        """Return the pace after a due step came while the upload before was under way."""
        return Pace(stride=min(2 * self.stride, SLOWEST))

    def kept_up(self) -> Pace:
        """Return the pace after an upload that ended before the next step was due."""
        return Pace(stride=max(1, self.stride // 2))
