"""Whatever is in a part's state comes back exactly from every tier, twice in a row, or is refused at the first save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

import holdfast
from holdfast.errors import CheckpointError
from holdfast.session.known import Known
from holdfast.session.state import PARTS, StateTree
from holdfast.storage.checkpoints.format import structure
from tests.session.kinds.compare import difference
from tests.session.kinds.tiers import TIERS, site
from tests.session.kinds.values import VALUES, Holder, Value

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*Sparse.*beta state", "ignore:.*nested tensors.*prototype"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("kind", [each for each in VALUES if not each.refused], ids=lambda each: each.name)
def test_a_value_comes_back_exactly(kind: Value, tmp_path: Path) -> None:
    """From each tier into fresh objects, and once more after two more saves of what came back."""
    with site(tmp_path) as place:
        saved = {"extra": Holder(kind.at)}
        session = place.begin(saved)
        for step in (1, 2, 3):
            saved["extra"].advance(step)
            place.save(session, saved, step)
        for tier in TIERS[::-1]:
            fresh = {"extra": Holder(kind.at)}
            session = place.restore(tier, 3, fresh)
            assert not difference(kind.at(3), fresh["extra"].value, tier)
        for step in (4, 5):
            place.save(session, fresh, step)
            assert not difference(kind.at(step - 1), fresh["extra"].value, "while saving")
            fresh["extra"].advance(step)
        again = {"extra": Holder(kind.at)}
        place.restore("memory", 5, again)
        assert not difference(kind.at(4), again["extra"].value, "second generation")


@pytest.mark.parametrize("kind", [each for each in VALUES if each.refused], ids=lambda each: each.name)
def test_a_value_is_refused_at_the_first_save(kind: Value, tmp_path: Path) -> None:
    """The message names the path in the state and what to do."""
    with site(tmp_path) as place:
        state = {"extra": Holder(kind.at)}
        session = place.begin(state)
        state["extra"].advance(1)
        session.step(1)
        with pytest.raises(CheckpointError, match=r"to|use|expected|define") as refused:
            session.checkpoint(state)
        assert kind.refused in str(refused.value)


def test_what_autograd_has_beside_a_tensor_is_left_behind(tmp_path: Path) -> None:
    """Gradients, as by torch's own files; and the graph of a computed tensor, which is as ``detach()`` gives it."""

    def at(step: int) -> Any:
        leaf = torch.zeros(3).add(step).requires_grad_()
        computed = leaf * 2
        computed.sum().backward()
        return {"leaf": leaf, "computed": computed}

    with site(tmp_path) as place:
        state = {"extra": Holder(at)}
        session = place.begin(state)
        state["extra"].advance(1)
        place.save(session, state, 1)
        fresh = {"extra": Holder(at)}
        place.restore("memory", 1, fresh)
    found = fresh["extra"].value
    assert (found["leaf"].grad, found["leaf"].requires_grad) == (None, True)
    assert (found["computed"].grad_fn, found["computed"].requires_grad) == (None, False)
    assert found["computed"].tolist() == [2.0] * 3


def _saved(kind: Value, ages: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trees and items of as many ranks as there are ages, by name; equal large tensors are saved once."""
    trees, items = {}, {}
    for rank, age in enumerate(ages):
        tree = StateTree({"extra": Holder(kind.at)}, rank, len(ages))
        tree.state["extra"].advance(age)
        tree.flat()
        if len(set(ages)) == 1:
            tree.placing.shared |= tree.placing.candidates.keys()
        flat = tree.flat()
        trees |= {name: each for name, each in flat.items() if name.startswith(f"{structure.key(rank)}.")}
        items |= flat
    return trees, items


def _at_other_size(kind: Value, ages: list[int], **rules: Any) -> Any:
    """The value that the last rank gets at a size of one more, from ranks that saved at these ages."""
    trees, items = _saved(kind, ages)
    rank, size, holder = len(ages), len(ages) + 1, Holder(kind.at)
    tree = StateTree({"extra": holdfast.Part(holder, **rules)}, rank, size)
    described = {
        name: TensorStorageMetadata(TensorProperties(dtype=each.dtype), each.size(), [])
        for name, each in items.items()
        if isinstance(each, torch.Tensor)
    }
    wanted = tree.wanted(range(len(ages)), 0, trees, exact=False)
    known = Known(Metadata(described), {PARTS: trees[f"{structure.key(0)}.{PARTS}"]})
    tree.want(known, {name: trees[name] for name in wanted}, 0)
    for name, room in known.targets.items():
        room.copy_(items[name])
    tree.take(known.targets, rank, size)
    return holder.value


EXACT = [each for each in VALUES if not each.refused]


@pytest.mark.parametrize("kind", EXACT, ids=lambda each: each.name)
def test_a_value_at_another_number_of_ranks(kind: Value) -> None:
    """Equal on all ranks: for all; else the script's ``merge`` and ``split`` get what each had, or it is refused."""
    assert not difference(kind.at(2), _at_other_size(kind, [2, 2]), "alike")
    if not difference(kind.at(1), kind.at(3)):
        return
    given: list[Any] = []

    def merge(states: Any) -> Any:
        given.extend(each["value"] for each in states)
        return states[1]

    assert not difference(
        kind.at(3), _at_other_size(kind, [1, 3], merge=merge, split=lambda one, *_: one), "split"
    )
    assert not difference([kind.at(1), kind.at(3)], given, "merged")
    with pytest.raises(CheckpointError, match="'extra' differs from rank to rank, and was saved by 2 ranks"):
        _at_other_size(kind, [1, 3])
