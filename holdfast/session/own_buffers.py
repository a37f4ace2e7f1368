"""The choice of which copy of the state a rank may overwrite with the next save, and when."""

from __future__ import annotations

from holdfast.storage.checkpoints.save.buffers import Saved

COPY_LAG_S = 10.0
"""A save that all peers have is kept this long for a newer one to reach them; then saves count that only ranks have."""


class OwnBuffers:
    """Tracks the newest save that must stay. The same on all ranks, apart from when each hears of it.

    With two buffers the one that does not hold that save is overwritten. With a ``single`` one (``checkpoint.buffers:
    1``) a save goes over that same file, once the peers of all ranks have its content; while they are late, saves are
    left out, and after :data:`COPY_LAG_S` a second buffer is taken until they have it.
    """

    def __init__(self, *, single: bool) -> None:
        self.single = single
        self.keeps: Saved | None = None
        """Epoch and step of the save that must stay."""
        self._on_peers = True
        self._at = -COPY_LAG_S

    def restored(self, saved: Saved, now: float) -> None:
        """Record that all ranks resume from ``saved``, in their own buffers; whether on their peers is not known."""
        self.keeps = saved
        if self.single:
            self._on_peers, self._at = False, now

    def late(self, now: float) -> bool:
        """Return whether the peers are behind for so long that saves without a copy count."""
        return now - self._at > COPY_LAG_S

    def common(self, saved: Saved, now: float, *, copied: bool, late: bool) -> None:
        """Record that all ranks have ``saved``, and their peers if ``copied``.

        Args:
            saved: epoch and step.
            now: seconds by a clock that is never set.
            copied: the peers of all ranks have it.
            late: a rank found its peers :meth:`late` when it voted; not this rank's own view, which may differ: ranks
                that keep different saves have none in common while they write the next.
        """
        if self.single or copied or late:
            # While peers are late, the save that all of them have stays: a machine may be lost as well as a rank.
            self.keeps, self._on_peers, self._at = saved, copied, now

    def copied(self) -> None:
        """Record that the peers of all ranks have the save that is kept."""
        self._on_peers = True

    @property
    def in_place(self) -> bool:
        """Whether the next save goes over the only buffer."""
        return self.single and self._on_peers

    def may_begin(self, now: float) -> bool:
        """Return whether a save may begin."""
        return not self.single or self._on_peers or self.late(now)
