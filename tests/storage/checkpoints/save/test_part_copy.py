"""Copies of what a rank contributes to S3: only small ones, whole ones, and of one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import buffers, part_copy, slot_files
from tests.agent.shards import write_shard

KIB = 1 << 10


def lent(folder: Path, owned: int, step: int = 1) -> tuple[Path, Path, buffers.ShardHeader]:
    """The slot and the loan of a shard of 64 KiB."""
    slot = write_shard(folder / "own" / "toy", step=step, payload=bytes(range(256)) * 256, owned=owned)
    loan = folder / "transfers" / "loan.shard"
    return slot, loan, slot_files.lend(slot, step, loan)


@pytest.mark.parametrize(
    ("owned", "small"), [(0, True), (16 * KIB, True), (40 * KIB, False), (64 * KIB, False)]
)
def test_only_a_small_part_is_worth_a_copy(tmp_path: Path, owned: int, small: bool) -> None:
    """At most half of the shard's memory."""
    assert part_copy.is_small(lent(tmp_path, owned)[2]) is small


def test_the_copy_is_the_beginning_of_the_shard(tmp_path: Path) -> None:
    """With its header, and not a byte of what other ranks upload."""
    _, loan, header = lent(tmp_path, 16 * KIB)
    part = part_copy.take(loan, header)
    assert part.stat().st_size == part_copy.nbytes(header) < header.file_nbytes / 2
    assert loan.read_bytes().startswith(part.read_bytes())


def test_a_shard_that_was_overwritten_meanwhile_is_refused(tmp_path: Path) -> None:
    """Nothing stays behind."""
    _, loan, header = lent(tmp_path, 16 * KIB)
    buffers.discard(loan)
    with pytest.raises(CheckpointError, match="was overwritten while it was copied"):
        part_copy.take(loan, header)
    assert list(loan.parent.glob("*.part")) == []
