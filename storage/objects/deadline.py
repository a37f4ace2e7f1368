"""The end of the time that a transfer may take."""

from __future__ import annotations

import time

from holdfast.errors import UnavailableError


class Deadline:
    """The moment when a transfer is given up; checked before every request."""

    def __init__(self, what: str, within_s: float) -> None:
        self._what = what
        self._within_s = within_s
        self._at = time.monotonic() + within_s

    def is_over(self) -> bool:
        """Return whether time is up."""
        return time.monotonic() >= self._at

    def check(self) -> None:
        """Check that time is left.

        Raises:
            UnavailableError: time is up.
        """
        if self.is_over():
            raise UnavailableError(f"{self._what}: not done within {self._within_s:.0f} s, given up")
