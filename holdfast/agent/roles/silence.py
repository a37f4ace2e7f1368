"""Replicas that hang: they reported progress, and report it no more."""

from __future__ import annotations

_LOOKS = 10
"""Within the time that a replica may be silent."""


class Silence:
    """How long a process has been silent, by what was seen of it.

    A host that stood still for a while has not looked meanwhile: that counts as one look.
    """

    def __init__(self, limit_s: float) -> None:
        """``limit_s``: the longest silence."""
        self.limit_s = limit_s
        self.look_s = limit_s / _LOOKS
        self._reported_at = 0
        self._silent_s = 0.0
        self._looked_at: float | None = None

    @property
    def why(self) -> str:
        """Why a process is taken to hang."""
        return f"no roles.alive() for {self._silent_s:.1f} s (restart.silent_s = {self.limit_s:g})"

    def over(self, reported_at: int, now: float) -> bool:
        """Return whether it was silent for too long.

        Args:
            reported_at: when it last reported progress, in any unit: only changes count; 0: never.
            now: monotonic seconds.
        """
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * self.look_s)
        self._looked_at = now
        if reported_at == 0 or reported_at != self._reported_at:
            self._reported_at, self._silent_s = reported_at, 0.0
            return False
        self._silent_s += passed
        return self._silent_s > self.limit_s
