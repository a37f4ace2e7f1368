"""The savers of this process that have not ended.

Not the Sessions: those are gone with the training function that is left, and a saver lives as long as a save of it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.session.saver import Saver

_live: weakref.WeakSet[Saver] = weakref.WeakSet()


def add(saver: Saver) -> None:
    """Note the saver of a session under an agent."""
    _live.add(saver)


def close_all(timeout_s: float) -> bool:
    """End all savers of an epoch that is over; return whether nothing of them writes any more."""
    closed = [saver.close(timeout_s) for saver in list(_live)]
    _live.clear()
    return all(closed)
