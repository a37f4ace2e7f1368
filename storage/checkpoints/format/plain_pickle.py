"""Plain values as ``torch.save`` writes them, byte for byte, without a call of Python for each of them.

``torch.save`` asks of every value inside whether it is a tensor's memory. Where there is nothing but numbers, text,
bytes, lists, tuples and dictionaries, there is nothing to ask, and pickle alone writes the same many times faster.
"""

from __future__ import annotations

import codecs
import io
import pickle
from functools import lru_cache
from typing import Any

import torch

# What the second protocol makes bytes with.
_OF_BYTES = (codecs.encode, bytes)


def dump_plain(value: object) -> bytes | None:
    """Return ``value`` in torch's one-stream format; None when something in it is not plain."""
    head, tail = _around()
    stream = io.BytesIO()
    stream.write(head)
    try:
        _PlainPickler(stream, protocol=torch.serialization.DEFAULT_PROTOCOL).dump(value)
    except _NotPlainError:
        return None
    stream.write(tail)
    return stream.getvalue()


class _NotPlainError(Exception):
    """Something that is not plain was met."""


class _PlainPickler(pickle.Pickler):
    """Gives up at the first thing that is not plain."""

    def reducer_override(self, value: Any) -> Any:
        """Called for what pickle has no opcode of."""
        if any(value is each for each in _OF_BYTES):
            return NotImplemented
        raise _NotPlainError


@lru_cache(maxsize=1)
def _around() -> tuple[bytes, bytes]:
    """Return the bytes that ``torch.save`` writes before and after a value without tensors."""
    stream = io.BytesIO()
    torch.save(None, stream, _use_new_zipfile_serialization=False)
    protocol = torch.serialization.DEFAULT_PROTOCOL
    value, tail = pickle.dumps(None, protocol), pickle.dumps([], protocol)
    return stream.getvalue().removesuffix(value + tail), tail
