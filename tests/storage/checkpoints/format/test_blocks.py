"""A range of a file is verified by the digests of its blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import blocks
from holdfast.storage.checkpoints.format.blocks import SMALLEST_BYTES, BlockCheck, BlockDigests, digest_blocks

KIB = 1 << 10


@given(st.integers(0, 700 * KIB), st.lists(st.integers(1, 400 * KIB), max_size=6), st.data())
def test_any_flipped_byte_is_found_in_its_block_and_nowhere_else(
    nbytes: int, pieces: list[int], data: st.DataObject
) -> None:
    """However the bytes came, digests are the same; one wrong byte condemns its block only."""
    content = bytearray(number % 251 for number in range(nbytes))
    digests, at = BlockDigests(nbytes), 0
    for piece in [*pieces, nbytes]:
        digests.update(bytes(content[at : at + piece]))
        at += piece
    made = digests.finish()
    assert made == digest_blocks(bytes(content))
    check = BlockCheck(made, nbytes)
    assert not list(check.bad(0, memoryview(content)))
    if nbytes:
        flipped = data.draw(st.integers(0, nbytes - 1))
        content[flipped] ^= 1
        ((start, end),) = check.bad(0, memoryview(content))
        assert start <= flipped < end


def test_large_files_get_larger_blocks() -> None:
    """The digests of a file of any size stay small."""
    assert blocks.block_nbytes_for(1) == SMALLEST_BYTES
    for nbytes in (1 << 30, 1 << 35, 3 << 40):
        size = blocks.block_nbytes_for(nbytes)
        assert -(-nbytes // size) <= blocks.MOST_BLOCKS


def test_digests_of_another_file_are_refused() -> None:
    """Their count gives them away."""
    with pytest.raises(CheckpointError, match="do not fit a file of 900000 bytes"):
        BlockCheck(digest_blocks(bytes(10)), 900_000)
