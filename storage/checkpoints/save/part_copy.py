"""A copy of the part of a shard that goes to S3, where that is small beside the whole: no buffer is lent for long.

With data parallelism a rank holds much that another one uploads. Its own part lies at the beginning of the shard file,
behind the header and the metadata; the copy is that beginning, and reads as the shard does.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.buffers import ShardHeader

LARGEST_SHARE = 0.5
"""Of a shard: a larger part is lent, since a copy would take about as much memory."""


def is_small(header: ShardHeader) -> bool:
    """Return whether to copy the part of such a shard instead of lending the whole."""
    return nbytes(header) <= LARGEST_SHARE * header.file_nbytes


def nbytes(header: ShardHeader) -> int:
    """Size of the copy."""
    return header.payload_offset + header.owned_nbytes


def take(loan: Path, header: ShardHeader, folder: Path | None = None) -> Path:
    """Copy the part of the shard at ``loan`` beside it, or into ``folder``, and return the copy's path.

    Raises:
        CheckpointError: the shard was overwritten meanwhile.
        OSError: there is no room.
    """
    part = loan.with_suffix(".part") if folder is None else folder / f"{loan.stem}.part"
    try:
        with loan.open("rb") as given, part.open("wb") as out:
            at, end = 0, nbytes(header)
            while at < end:
                sent = os.sendfile(out.fileno(), given.fileno(), at, end - at)
                if sent == 0:
                    raise CheckpointError(f"shard {loan} is shorter than its header says")
                at += sent
        if buffers.read_header(loan) != header or _header_of(part) != header:
            raise CheckpointError(f"shard {loan}: step {header.step} was overwritten while it was copied")
    except (CheckpointError, OSError):
        part.unlink(missing_ok=True)
        raise
    return part


def _header_of(part: Path) -> ShardHeader | None:
    """Return the header, which :func:`buffers.read_header` would refuse: it has the size of the whole shard."""
    with part.open("rb") as file:
        return buffers.parse_header(file.read(buffers.HEADER_BYTES))
