"""The exception of which a group consists: what a script with one failed task died of."""

from __future__ import annotations


def only_member(error: BaseException) -> BaseException:
    """Return the only exception of a group, also of a group within it; any other exception as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
