"""Saves over a rank's only slot: one file, and never a file that is lent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.save import buffers, slot_files
from holdfast.storage.checkpoints.save.writer import Owner, Save, ShardWriter

pytestmark = pytest.mark.torch


class Rank:
    """Saves a weight of ``numbers`` elements."""

    def __init__(self, folder: Path, numbers: int = 4000) -> None:
        self.folder, self.weight = folder, torch.zeros(numbers)
        planned = make_plan({"weight": self.weight}, folder, epoch=1, number=1)
        self.writer = ShardWriter(planned.layout, Owner("toy", 1, 0, 1), folder)
        self.writer.prepare(single=True)

    def start(self, step: int, *, in_place: bool = True, keeps: tuple[int, int] | None = None) -> Save:
        self.weight.fill_(step)
        contents = self.writer.collect({"weight": self.weight})
        assert contents is not None
        return self.writer.start(contents, step, keeps=keeps, in_place=in_place)

    @property
    def held(self) -> list[int]:
        """Complete steps."""
        return [header.step for _, header in buffers.inventory(self.folder)]

    @property
    def files(self) -> int:
        return len(list(self.folder.glob("r0-?.shard")))


def test_each_save_goes_over_the_one_before(tmp_path: Path) -> None:
    """One file; while it is written there is no complete shard here."""
    rank = Rank(tmp_path)
    for step in (1, 2, 3):
        save = rank.start(step)
        assert rank.held == []
        assert save.run()
        assert rank.held == [step]
        assert rank.files == 1


def test_a_second_slot_is_taken_while_peers_are_late_and_given_up_after(tmp_path: Path) -> None:
    """Not in place, the kept shard stays; in place again there is one file."""
    rank = Rank(tmp_path)
    rank.start(1).run()
    rank.start(2, in_place=False, keeps=(1, 1)).run()
    assert rank.held == [1, 2]
    rank.start(3).run()
    assert rank.held == [3]
    assert rank.files == 1


def test_a_lent_slot_is_not_written_and_no_other_is_taken(tmp_path: Path) -> None:
    """The save is refused, which is not counted as a failure; with a successor at hand it goes there."""
    rank = Rank(tmp_path)
    rank.start(1).run()
    (path, _), loan = *buffers.inventory(tmp_path), tmp_path / "lent" / "one"
    slot_files.lend(path, 1, loan)
    with pytest.raises(CheckpointError, match="is pinned"):
        rank.start(2)
    assert rank.writer.is_waiting_for_memory(in_place=True)
    assert rank.held == [1]
    slot_files.reserve(path, path.stat().st_size)
    rank.start(2).run()
    assert rank.held == [2]
    assert buffers.verify(loan).step == 1


def test_a_file_of_another_plan_makes_way_first(tmp_path: Path) -> None:
    """Old and new never lie there together."""
    Rank(tmp_path).start(1).run()
    larger = Rank(tmp_path, 8000)
    assert larger.held == [1]
    larger.start(2).run()
    assert larger.held == [2]
    assert larger.files == 1


def test_the_one_shard_of_a_job_that_had_two_is_found(tmp_path: Path) -> None:
    """It may lie in the second slot."""
    rank = Rank(tmp_path)
    rank.start(1, in_place=False).run()
    rank.start(2, in_place=False).run()
    (tmp_path / "r0-a.shard").unlink()
    assert rank.held == [2]
    again = Rank(tmp_path)
    assert again.held == [2]
    again.start(3).run()
    assert (again.held, again.files) == ([3], 1)
