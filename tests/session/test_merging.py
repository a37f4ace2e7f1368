"""State of each rank's own at another number of ranks: the script's ``merge`` and ``split`` decide in any case."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import Metadata

from holdfast import Part
from holdfast.data.lease_state import lease_part
from holdfast.errors import CheckpointError
from holdfast.session.known import Known
from holdfast.session.state import PARTS, StateTree
from holdfast.storage.checkpoints.format import structure

pytestmark = pytest.mark.torch


class Taken:
    """Counts the samples that its rank alone has taken."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["taken"]


def restored(saved: list[int], rank: int, ranks: int, *, rules: bool = True) -> int:
    """The count of ``rank`` of ``ranks``, restored from one saved number per earlier rank."""
    taken = Taken()
    part = Part(
        taken,
        merge=(lambda states: sum(each["taken"] for each in states)) if rules else None,
        split=(lambda whole, _, size: {"taken": whole // size}) if rules else None,
    )
    tree, source = StateTree({"loader": part}, rank, ranks), rank % len(saved)
    trees = {
        f"{structure.key(number)}.loader": ("@plain", {"taken": each}) for number, each in enumerate(saved)
    }
    wanted = tree.wanted(range(len(saved)), source, trees, exact=len(saved) == ranks)
    known = Known(Metadata({}), {PARTS: {"parts": {"loader": "other"}}})
    tree.want(known, {name: trees[name] for name in wanted}, source)
    tree.take({}, rank, ranks)
    return taken.count


@pytest.mark.parametrize(("saved", "ranks"), [([6, 2], 4), ([4, 4], 4), ([8], 4), ([4, 4], 1), ([6, 2], 1)])
def test_nothing_is_taken_twice_or_left_out(saved: list[int], ranks: int) -> None:
    """Also when all ranks had the same count, and when there was one rank."""
    assert [restored(saved, rank, ranks) for rank in range(ranks)] == [sum(saved) // ranks] * ranks


def test_each_rank_has_its_own_at_the_same_number() -> None:
    """Neither function is asked."""
    assert [restored([6, 2], rank, 2) for rank in range(2)] == [6, 2]


def test_without_rules_equal_values_are_for_all_and_others_are_refused() -> None:
    """A value that all ranks had belongs to the job."""
    assert restored([5, 5], 2, 3, rules=False) == 5
    with pytest.raises(CheckpointError, match=r"'loader' differs from rank to rank"):
        restored([6, 2], 2, 3, rules=False)


def test_leases_that_no_rank_keeps_are_merged() -> None:
    """The book lies on a server: no rank has anything."""
    part = lease_part(None)
    assert part.merge is not None
    assert part.merge([{}, {}]) == {}
