"""Why a connection could not be made: the host refused it, or nothing came back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

_SILENT = frozenset(
    {
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.ENETDOWN,
        errno.ETIMEDOUT,
        errno.EADDRNOTAVAIL,
        # This side lacks something: files, or memory for sockets.
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
    }
)


def is_silence(error: BaseException) -> bool:
    """Return whether the network or this side, not the host, kept ``error``'s connection from being made.

    A host that refuses is alive, and reports that no process listens; one that cannot be reached may run anything.
    """
    return any(isinstance(each, TimeoutError) or each.errno in _SILENT for each in _causes(error))


def reason_of(error: BaseException) -> str:
    """Return the kernel's message for the error."""
    numbers = [each.errno for each in _causes(error) if each.errno in _SILENT]
    return os.strerror(numbers[0]).lower() if numbers and numbers[0] else str(error)


def _causes(error: BaseException) -> Iterator[OSError]:
    """Yield all system errors behind ``error``: HTTP libraries wrap them several times."""
    look, seen = [error], set[int]()
    while look:
        one = look.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError):
            yield one
        if isinstance(one, BaseExceptionGroup):
            look += one.exceptions
        look += [each for each in (one.__cause__, one.__context__) if each is not None]
