"""Choice of the due steps that a rank uploads when the store takes longer than there is time between two of them.

Each rank decides alone, yet only a step that all ranks upload becomes a checkpoint. So a rank that is still busy
halves its rate, and uploads only multiples of (steps between uploads x 1, 2, 4, ...): the steps of a slower rank are
always among those of a faster one, however slow each rank is.
"""

from __future__ import annotations

from holdfast.models.base import Frozen

SLOWEST = 1024


class Pace(Frozen):
    """How often one rank uploads."""

    stride: int = 1
    """A power of two: every so many due steps."""

    def due(self, step: int, every: int) -> bool:
        """Return whether ``step`` is to be uploaded, with an upload wanted ``every`` so many steps (0: never)."""
        return every > 0 and step % (every * self.stride) == 0

    def skipped(self) -> Pace:
        """Return the pace after a due step came while the upload before was under way."""
        return Pace(stride=min(2 * self.stride, SLOWEST))

    def kept_up(self) -> Pace:
        """Return the pace after an upload that ended before the next step was due."""
        return Pace(stride=max(1, self.stride // 2))
