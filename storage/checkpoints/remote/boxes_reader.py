"""The compact metadata of a checkpoint in S3: whole where it is small, else the ranges that a rank needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from holdfast.errors import CheckpointError, DamagedError, UnknownError
from holdfast.storage.checkpoints.format.blocks import BlockCheck, Blocks
from holdfast.storage.checkpoints.format.boxes import PREFIX_BYTES, Boxes
from holdfast.storage.checkpoints.remote.manifests import BOXES, RemoteFile

WHOLE_BYTES = 32 << 20
"""Up to so much rank 0 reads all of it and passes it on; of more each rank reads its part from S3."""
_GAP_BYTES = 256 << 10
_READ_BYTES = 16 << 20


class BoxesReader:
    """Reads ranges of one checkpoint's compact metadata, each verified by the digests of its blocks."""

    def __init__(
        self,
        file: RemoteFile,
        where: str,
        get_range: Callable[[str, int, int], bytes],
        read_blocks: Callable[[RemoteFile], Blocks | None],
    ) -> None:
        """Prepare to read ``file``, the manifest's entry; ``where`` names the checkpoint in errors."""
        self._file, self._where = file, where
        self._get_range, self._read_blocks = get_range, read_blocks
        self._check: BlockCheck | None = None

    def leading(self) -> bytes:
        """Read the part that every rank needs: the head of the file, or all of it; verified.

        Raises:
            DamagedError: it is missing or damaged, or of another version.
            UnavailableError: S3 does not answer.
        """
        nbytes = self._file.nbytes
        if nbytes <= WHOLE_BYTES:
            data = self._bytes(0, nbytes)
            if xxhash.xxh3_128_hexdigest(data) != self._file.digest:
                raise self._damaged("is not what its manifest says")
            Boxes(data, self._where)
            return data
        prefix = self._verified(0, min(nbytes, PREFIX_BYTES))
        head = self._verified(0, min(nbytes, Boxes.head_nbytes(prefix, self._where)))
        Boxes(head, self._where)
        return head

    def fetch(self, leading: bytes, spans: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Return the bytes of each range, of the ``leading`` ones at hand or of S3; near ones are read at once.

        Raises:
            DamagedError: they are missing or damaged.
            UnavailableError: S3 does not answer.
        """
        if len(leading) == self._file.nbytes:
            return [memoryview(leading)[start:end] for start, end in spans]
        found: list[bytes | memoryview] = [b""] * len(spans)
        for low, high, members in _joined(spans):
            data = memoryview(self._verified(low, high))
            for number in members:
                start, end = spans[number]
                found[number] = data[start - low : end - low]
        return found

    def _verified(self, start: int, end: int) -> bytes:
        """Return the bytes of the file, read in whole blocks; once more when they are damaged."""
        check = self._blocks()
        size = check.block_nbytes
        low, high = start // size * size, min(-(-end // size) * size, self._file.nbytes)
        data = self._bytes(low, high)
        if any(check.bad(low, memoryview(data))):
            data = self._bytes(low, high)
        if bad := next(iter(check.bad(low, memoryview(data))), None):
            raise self._damaged(f"bytes {bad[0]} to {bad[1]} are not those that were saved")
        return data[start - low : end - low]

    def _blocks(self) -> BlockCheck:
        if self._check is None:
            try:
                blocks = self._read_blocks(self._file)
            except CheckpointError as error:
                raise self._damaged(f"cannot be verified: {error}") from error
            if blocks is None:
                raise self._damaged("has no digests of its blocks")
            self._check = BlockCheck(blocks, self._file.nbytes)
        return self._check

    def _bytes(self, start: int, end: int) -> bytes:
        try:
            return self._get_range(self._file.name, start, end)
        except UnknownError as error:
            raise self._damaged(f"cannot be read: {error}") from error

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(f"{self._where}: {BOXES} {why}.")


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Join ranges that are near each other; return them, each with the numbers of its ``spans``."""
    found: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(spans)), key=lambda each: spans[each]):
        start, end = spans[number]
        if found and start - found[-1][1] <= _GAP_BYTES and end - found[-1][0] <= _READ_BYTES:
            low, high, members = found.pop()
            found.append((low, max(high, end), [*members, number]))
        else:
            found.append((start, end, [number]))
    return found
