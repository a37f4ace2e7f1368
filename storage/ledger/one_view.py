"""Reads of one decision: what it asks more than once is read once, and is the same each time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

Read = TypeVar("Read", bound=Callable[..., Any])

_seen: ContextVar[dict[Hashable, object] | None] = ContextVar("_seen", default=None)


@contextmanager
def one_view() -> Iterator[None]:
    """Answer reads that were made before within this block from memory; also a decorator of functions.

    For decisions, which read a job, its incident and its epochs in many places. Nothing may be awaited within: others
    change the ledger meanwhile. What is written within is seen.
    """
    if _seen.get() is not None:
        yield
        return
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def read_once(read: Read) -> Read:
    """Have a read of the ledger, with arguments that can be hashed, answered from memory within :func:`one_view`."""

    @functools.wraps(read)
    def answer(part: Hashable, *args: Hashable, **options: Hashable) -> object:
        seen = _seen.get()
        if seen is None:
            return read(part, *args, **options)
        asked = (part, read.__name__, args, tuple(options.items()))
        if asked not in seen:
            seen[asked] = read(part, *args, **options)
        found = seen[asked]
        return list(found) if isinstance(found, list) else found

    return cast("Read", answer)


def forget() -> None:
    """Have what is asked from now on read again: something was written."""
    if seen := _seen.get():
        seen.clear()
