"""Ranges of flat buffers are boxes of the tensors in them: exactly, and few."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.flat import FlatShard, boxes_of, flat_shards

pytestmark = pytest.mark.torch

SHAPES = st.lists(st.integers(1, 6), max_size=5).map(tuple)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(SHAPES)
    stop = draw(st.integers(0, math.prod(shape)))
    return shape, draw(st.integers(0, stop)), stop


@settings(max_examples=500)
@given(ranges())
def test_boxes_are_disjoint_and_cover_exactly_the_range(made: tuple[tuple[int, ...], int, int]) -> None:
    """Every element of the range is in one box, at its place; no other element is in any."""
    shape, start, stop = made
    whole = torch.arange(math.prod(shape)).view(shape)
    seen = []
    for box in boxes_of(shape, start, stop):
        assert len(seen) == box.at
        part = whole[tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))]
        assert part.numel() == box.numel > 0
        seen += part.flatten().tolist()
    assert seen == list(range(start, stop))


@settings(max_examples=500)
@given(ranges())
def test_boxes_are_few(made: tuple[tuple[int, ...], int, int]) -> None:
    """At most 2n - 1 boxes for n dimensions."""
    shape, start, stop = made
    assert len(boxes_of(shape, start, stop)) <= max(1, 2 * len(shape) - 1)


@settings(max_examples=100)
@given(st.lists(SHAPES, min_size=1, max_size=5), st.integers(1, 7), st.integers(0, 3))
def test_ranks_together_hold_every_element_once(
    shapes: list[tuple[int, ...]], ranks: int, padding: int
) -> None:
    """However a padded buffer is cut among ranks, the tensors can be put together again."""
    named = {f"t{number}": shape for number, shape in enumerate(shapes)}
    size = sum(map(math.prod, shapes))
    each = -(-(size + padding) // ranks)
    buffer = torch.arange(each * ranks)
    found = {name: torch.full(shape, -1) for name, shape in named.items()}
    for rank in range(ranks):
        for name, part in flat_shards(named, buffer[rank * each : (rank + 1) * each], rank * each).items():
            for item in part.__create_write_items__(name, part):
                chunk = item.tensor_data.chunk
                place = found[name][
                    tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
                ]
                assert (place == -1).all()
                place.copy_(part.__get_tensor_shard__(item.index))
    assert torch.equal(torch.cat([each.flatten() for each in found.values()]), buffer[:size])


def test_stock_torch_saves_and_loads_it(tmp_path: Path) -> None:
    """dcp.save of ranges, dcp.load of whole tensors and of other ranges: no all-gather, no Holdfast in between."""
    named = {"a": (3, 5), "b": (7,), "c": (2, 3, 4)}
    buffer = torch.randn(46)
    dcp.save({"opt": flat_shards(named, buffer, 0)}, checkpoint_id=tmp_path, no_dist=True)
    whole = {"opt": {name: torch.zeros(shape) for name, shape in named.items()}}
    dcp.load(whole, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(torch.cat([each.flatten() for each in whole["opt"].values()]), buffer)
    for start, stop in ((0, 17), (17, 23), (23, 46)):
        local = torch.zeros(stop - start)
        dcp.load({"opt": flat_shards(named, local, start)}, checkpoint_id=tmp_path, no_dist=True)
        assert torch.equal(local, buffer[start:stop])


def test_bad_ranges_are_refused() -> None:
    """The error states that it is not a range of the tensor, or not flat."""
    with pytest.raises(CheckpointError, match=r"elements 3 to 7 of a tensor of shape \[2, 3\]"):
        FlatShard(torch.zeros(4), (2, 3), 3)
    with pytest.raises(CheckpointError, match="one-dimensional"):
        FlatShard(torch.zeros(2, 2), (2, 3), 0)
    with pytest.raises(NotImplementedError, match="local"):
        FlatShard(torch.zeros(2), (2, 3), 0) + 1
