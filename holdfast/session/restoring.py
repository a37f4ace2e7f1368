"""Whether a Session is restoring: it looks at the state of each part before it fills it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IS_RESTORING: ContextVar[bool] = ContextVar("is_restoring", default=False)


@contextmanager
def restoring() -> Iterator[None]:
    """Mark what runs inside as a restore."""
    token = _IS_RESTORING.set(True)
    try:
        yield
    finally:
        _IS_RESTORING.reset(token)


def is_restoring() -> bool:
    """Return whether the caller is asked for its state only to be restored, not to be saved."""
    return _IS_RESTORING.get()
