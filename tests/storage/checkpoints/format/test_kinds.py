"""Kinds of values that are written as they are, or refused with their path: nothing of them is left out."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch

from holdfast import Part
from holdfast.errors import ScriptRefusedError
from holdfast.session.encoded import Placing
from holdfast.session.others import OtherPart
from holdfast.storage.checkpoints.format.decoder import decode
from holdfast.storage.checkpoints.format.encoder import Encoder
from holdfast.storage.checkpoints.format.layout import dump_object
from tests.session.kinds.values import Begun, Holder

pytestmark = pytest.mark.torch

T = TypeVar("T")


@dataclasses.dataclass
class Boxed(Generic[T]):
    held: T


def _node(value: Any) -> Any:
    return Encoder(lambda path, tensor: None).part("extra", value)


def test_what_a_dataclass_computes_once_is_computed_again() -> None:
    """A lock could not be saved, and need not be; attributes that are set once are."""
    value = Begun(3)
    assert value.lock
    again = decode(_node({"it": value}), {})["it"]
    assert "lock" not in vars(again)
    assert again.generator.random() == value.generator.random()


def test_a_generic_dataclass_is_saved_however_it_was_made() -> None:
    """The attribute that typing adds to one that was made by an alias could not be saved, and is no state."""
    value = Boxed[int](3)
    assert "__orig_class__" in vars(value)
    again = decode(_node({"it": value}), {})["it"]
    assert again == value
    assert vars(again) == {"held": 3}


def test_what_numpy_cannot_write_is_refused_by_its_path() -> None:
    """A note of a type may be anything."""
    kind = np.dtype("i4", metadata={"made by": np.zeros})
    with pytest.raises(
        ScriptRefusedError, match=r"state 'extra\.in\.0\.\S*made by': .* plain values instead"
    ):
        _node({"in": [np.zeros(2, kind)]})


def test_windows_of_much_memory_go_on_overlapping() -> None:
    """Whatever is changed in one is changed in the other; of the memory, what the windows have is saved, once."""
    tokens = torch.arange(400_000)
    same = tokens[300:304]
    windows = [
        tokens[5:105],
        tokens[51:150],
        tokens[20_000:60_000],
        tokens[40_000:80_000],
        same,
        same,
        tokens[90_000:110_000],
    ]
    placing, part = Placing(), OtherPart("extra", Part(Holder(lambda _: windows)))
    saved = part.encode(placing)
    assert saved.items.keys() == placing.candidates.keys() == {"extra.value.6"}
    assert (
        len(dump_object(saved.nodes["extra"])) < 600_000
    )  # 480,000 bytes, of which some take two in a pickle
    again = decode(saved.nodes["extra"], saved.items)["value"]
    assert all(torch.equal(*each) for each in zip(windows, again, strict=True))
    again[0][46], again[2][20_000], again[4][0] = -1, -2, -3
    assert [int(again[at][0]) for at in (1, 3, 5)] == [-1, -2, -3]
    assert int(tokens[51]) == 51


def test_windows_that_overlapped_once_are_no_items_any_more() -> None:
    """Some windows move: with items that come and go, ranks would make a new plan at each call, and save at none."""
    tokens = torch.arange(80_000)
    starts = [(0, 40_000), (0, 20_000), (0, 40_000)]
    holder = Holder(lambda step: [tokens[start : start + 30_000] for start in starts[step]])
    placing, part = Placing(), OtherPart("extra", Part(holder))
    assert part.encode(placing).items.keys() == {"extra.value.0", "extra.value.1"}
    for step in (1, 2):
        holder.advance(step)
        placing.candidates.clear()
        saved = part.encode(placing)
        assert not saved.items
        again = decode(saved.nodes["extra"], {})["value"]
        assert all(torch.equal(*each) for each in zip(holder.value, again, strict=True))


def test_columns_of_a_large_matrix_do_not_take_it_along() -> None:
    """They lie among each other, and have no element in common."""
    matrix = torch.arange(1_000_000).view(-1, 1000)
    part = OtherPart("extra", Part(Holder(lambda _: [matrix[:, 0], matrix[:, 1]])))
    saved = part.encode(Placing())
    assert len(dump_object(saved.nodes["extra"])) < 50_000
    again = decode(saved.nodes["extra"], saved.items)["value"]
    assert all(torch.equal(matrix[:, at], again[at]) for at in range(2))


def test_a_flat_buffer_stays_an_item_beside_its_views() -> None:
    """In the tree it would be written again on the step's path, at every save."""
    flat = torch.zeros((64 << 20) // 4 + 1)
    part = OtherPart("extra", Part(Holder(lambda _: [flat, flat[:100_000]])))
    saved = part.encode(Placing())
    assert saved.items.keys() == {"extra.value.0", "extra.value.1"}
