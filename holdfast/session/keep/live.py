"""The Sessions of this process that have not ended."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.session.session import Session

_live: weakref.WeakSet[Session] = weakref.WeakSet()


def add(session: Session) -> None:
    """Note a session under an agent."""
    _live.add(session)


def close_all(timeout_s: float) -> bool:
    """End all sessions of an epoch that is over; return whether nothing of them writes any more."""
    closed = [session.close(timeout_s) for session in list(_live)]
    _live.clear()
    return all(closed)
