"""Digests of a file's blocks, so that a part of it can be verified without reading the whole.

A rank that loads under another parallelism reads ranges of the files in S3. The digest of a whole file
cannot verify a range; the digests of its blocks can. They lie beside the file; the manifest has their digest.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator

import xxhash

from holdfast.errors import CheckpointError
from holdfast.models.base import Frozen

SMALLEST_BYTES = 256 << 10
MOST_BLOCKS = 4096
_DIGEST = struct.Struct("<Q")


class Blocks(Frozen):
    """Digests of the consecutive blocks of one file; the last block may be shorter."""

    block_nbytes: int
    digests: str
    """Base64 of the blocks' xxh3_64, 8 bytes each, little endian."""

    @property
    def digest(self) -> str:
        """xxh3_128 (hex) of all of it: what the manifest holds."""
        return xxhash.xxh3_128_hexdigest(f"{self.block_nbytes}:{self.digests}".encode())


def block_nbytes_for(nbytes: int) -> int:
    """Block size for a file of ``nbytes``: a power of two, such that there are at most ``MOST_BLOCKS``."""
    size = SMALLEST_BYTES
    while size * MOST_BLOCKS < nbytes:
        size *= 2
    return size


class BlockDigests:
    """Digests of a file that comes in pieces of any size, in order."""

    def __init__(self, nbytes: int) -> None:
        """Prepare for a file of ``nbytes`` in all."""
        self.block_nbytes = block_nbytes_for(nbytes)
        self._done = bytearray()
        self._open = xxhash.xxh3_64()
        self._room = self.block_nbytes

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes of the file."""
        with memoryview(piece) as view:
            at = 0
            while at < len(view):
                count = min(self._room, len(view) - at)
                with view[at : at + count] as part:
                    self._open.update(part)
                at, self._room = at + count, self._room - count
                if self._room == 0:
                    self._close()

    def finish(self) -> Blocks:
        """Return the digests, when all bytes were given."""
        if self._room < self.block_nbytes:
            self._close()
        return Blocks(
            block_nbytes=self.block_nbytes, digests=base64.b64encode(bytes(self._done)).decode("ascii")
        )

    def _close(self) -> None:
        self._done += _DIGEST.pack(self._open.intdigest())
        self._open.reset()
        self._room = self.block_nbytes


def digest_blocks(data: bytes | memoryview) -> Blocks:
    """Block digests of a file whose bytes are at hand."""
    digests = BlockDigests(len(data))
    digests.update(data)
    return digests.finish()


class BlockCheck:
    """Verifies ranges of one file that begin and end at its blocks' borders."""

    def __init__(self, blocks: Blocks, nbytes: int) -> None:
        """Prepare for a file of ``nbytes``.

        Raises:
            CheckpointError: the digests are not those of a file of that size.
        """
        self.block_nbytes = blocks.block_nbytes
        self.nbytes = nbytes
        try:
            raw = base64.b64decode(blocks.digests, validate=True)
            self._digests = [each for (each,) in _DIGEST.iter_unpack(raw)]
        except (ValueError, struct.error) as error:
            raise CheckpointError(f"block digests are damaged: {error}") from error
        if self.block_nbytes < 1 or len(self._digests) != -(-nbytes // self.block_nbytes):
            raise CheckpointError(
                f"{len(self._digests)} block digests of {self.block_nbytes} bytes each do not fit a file of "
                f"{nbytes} bytes"
            )

    def bad(self, start: int, data: memoryview) -> Iterator[tuple[int, int]]:
        """Yield the ranges ``(start, end)`` of the blocks in ``data`` whose bytes are not those that were saved.

        ``data`` lies at byte ``start`` of the file; both of its ends are borders of blocks.
        """
        assert start % self.block_nbytes == 0
        for at in range(0, len(data), self.block_nbytes):
            with data[at : at + self.block_nbytes] as block:
                found = xxhash.xxh3_64_intdigest(block)
                if found != self._digests[(start + at) // self.block_nbytes]:
                    yield start + at, start + at + len(block)
