"""Decode a pickle of plain data, and of few known classes, from any source in bounded time and memory.

Python's own unpickler, restricted to import nothing, still does what a few hundred bytes ask: a memo of gigabytes for
one number in it, an array as long as its header claims, a dictionary key whose hash takes hours because each of its
tuples holds the next one twice. So the operations are read one by one (``pickletools``, which only parses) and done
here: each makes as much as the bytes that it was read from, and their number is bounded.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from typing import Any

from holdfast.bounded_pickle import operations
from holdfast.bounded_pickle.counting_reader import CountingReader
from holdfast.bounded_pickle.limits import PLAIN_DATA, Kinds, Limits, MaliciousPickleError, PickledKind

__all__ = ["Limits", "MaliciousPickleError", "PickledKind", "load", "load_next"]

MAX_BYTES = 64 << 20
MAX_OPERATIONS = 2_000_000
_SHOWN_CHARS = 60
"""Characters of a text from the pickle in a message."""


def load(
    content: bytes,
    *,
    kinds: Kinds | None = None,
    max_bytes: int = MAX_BYTES,
    max_operations: int | None = MAX_OPERATIONS,
) -> Any:
    """Return the value in ``content``: numbers, text, bytes, lists, tuples, dictionaries with plain keys.

    An object that occurs twice is one object, as in every pickle: code that walks through the value, or prints it,
    visits that object as often as it is named. At most :data:`.MAX_DEPTH` levels are nested.

    Args:
        content: the pickle.
        kinds: classes that it may name beside; None: none.
        max_bytes: limit of its size.
        max_operations: limit of its operations; None: that of its size is enough.

    Raises:
        MaliciousPickleError: it holds anything else, is broken, or asks for more than it may.
    """
    if len(content) > max_bytes:
        raise MaliciousPickleError(f"{len(content)} bytes (limit {max_bytes}): refused")
    return load_next(io.BytesIO(content), len(content), kinds=kinds, max_operations=max_operations)


def load_next(
    stream: io.BytesIO,
    size: int,
    *,
    kinds: Kinds | None = None,
    persistent: Callable[[Any], Any] | None = None,
    limits: Limits = PLAIN_DATA,
    max_operations: int | None = None,
) -> Any:
    """Return the value of the next pickle in ``stream``, which is then behind it.

    Args:
        stream: the pickle, and anything behind it.
        size: bytes of the file, which explain what the pickle may ask for.
        kinds: classes that it may name beside; None: none.
        persistent: returns what an identifier of an object outside the pickle stands for; None: there is none.
        limits: of what it may hold.
        max_operations: limit of its operations; None: that of its size is enough.

    Raises:
        MaliciousPickleError: it holds anything else, is broken, or asks for more than it may.
    """
    reader = CountingReader(kinds, size, limits, persistent)
    known = operations.PLAIN if kinds is None else operations.WITH_KINDS
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):
            if number == max_operations:
                raise MaliciousPickleError(f"more than {max_operations} operations: refused")
            do = known.get(operation.name)
            if do is None:
                named = reader.stack[-2:] if argument is None else [argument]
                wanted = "".join(f" {each:.{_SHOWN_CHARS}}" for each in named if isinstance(each, str))
                raise MaliciousPickleError(f"it asks for {operation.name}{wanted}: refused")
            do(reader, argument)
        return reader.result()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MaliciousPickleError(f"broken: {type(error).__name__} {error!s:.{2 * _SHOWN_CHARS}}") from None
