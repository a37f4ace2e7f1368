"""The plan file that rank 0 keeps beside its shard: the stock ``.metadata``, and the compact form behind it.

A pickle marks its own end, so the file still reads as a ``.metadata``. Without torch, for processes that only move
it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from holdfast.errors import CheckpointError

_END = struct.Struct("<QQ8s")  # bytes of the stock form, of the compact form, magic
_MAGIC = b"HFPLAN1\n"


@dataclass(frozen=True)
class PlanFile:
    """Both forms of a plan's metadata."""

    stock: bytes
    """Empty: it is large, and written of the compact form when it is needed."""
    compact: bytes
    """Empty: an older Holdfast made the plan."""


def join(stock: bytes, compact: bytes) -> bytes:
    """Join both forms to one file."""
    return b"".join([stock, compact, _END.pack(len(stock), len(compact), _MAGIC)])


def split(content: bytes) -> PlanFile:
    """Split what :func:`join` was given; a file that an older Holdfast wrote is the stock form alone.

    Raises:
        CheckpointError: it is damaged.
    """
    if len(content) < _END.size or content[-len(_MAGIC) :] != _MAGIC:
        return PlanFile(content, b"")
    stock, compact, _ = _END.unpack(content[-_END.size :])
    if stock + compact + _END.size != len(content):
        raise CheckpointError(
            f"plan of {len(content)} bytes: it says that {stock} and {compact} bytes are in it. It is damaged."
        )
    return PlanFile(content[:stock], content[stock : stock + compact])
