"""Compare the parts read with the parts wanted: nothing is left as it was, nothing saved is dropped."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from holdfast.errors import CheckpointError, UncoveredError
from holdfast.storage.checkpoints.format.flat import FlatShard
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.load.coverage import (
    Wanted,
    gaps,
    require_consumed,
    require_covered,
    unconsumed,
)
from holdfast.storage.checkpoints.load.safe_load import SafeLoadPlanner

pytestmark = pytest.mark.torch


def chunk(offsets: Sequence[int], sizes: Sequence[int]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def saved(
    size: Sequence[int], chunks: Sequence[ChunkStorageMetadata], dtype: torch.dtype = torch.float32
) -> TensorStorageMetadata:
    return TensorStorageMetadata(TensorProperties(dtype), torch.Size(size), list(chunks))


def plan(
    state: dict[str, object], known: dict[str, TensorStorageMetadata | BytesStorageMetadata]
) -> list[ReadItem]:
    planner = SafeLoadPlanner()
    planner.set_up_planner(state, Metadata(known))
    return planner.create_local_plan().items


boxes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=2, max_size=2)


@given(st.lists(boxes, max_size=6), boxes)
def test_missing_elements_are_counted_exactly(
    held: list[list[tuple[int, int]]], box: list[tuple[int, int]]
) -> None:
    """For any boxes that are read, overlapping ones too, with the count from painting the elements one by one."""
    chunks = [chunk(*zip(*each, strict=True)) for each in held]
    target = chunk(*zip(*box, strict=True))
    items = create_read_items_for_chunk_list("w", saved((9, 9), chunks), [target])
    painted = np.zeros((9, 9), bool)
    for each in chunks:
        painted[tuple(slice(at, at + size) for at, size in zip(each.offsets, each.sizes, strict=True))] = True
    mine = painted[tuple(slice(at, at + size) for at, size in zip(target.offsets, target.sizes, strict=True))]
    found = gaps(Wanted({"w": [target]}), items)
    assert sum(gap.missing for gap in found) == int((~mine).sum())
    assert all(gap.needed == math.prod(target.sizes) for gap in found)


def test_an_empty_shard_and_a_number_need_no_box_of_their_own() -> None:
    """No elements are none missing; a tensor without dimensions has one."""
    known = {"empty": saved((0, 4), [chunk((0, 0), (0, 4))]), "step": saved((), [chunk((), ())])}
    assert plan({"empty": torch.zeros(0, 4), "step": torch.tensor(1.0)}, known)
    with pytest.raises(UncoveredError, match="step: 1 of 1 elements"):
        plan({"step": torch.tensor(1.0)}, {"step": saved((), [])})


def test_every_box_of_a_flat_shard_counts() -> None:
    """A range of a tensor is several boxes; the one that is missing is found."""
    part = FlatShard(torch.zeros(11), (4, 5), 3)
    whole = [chunk(each.offsets, each.sizes) for each in part.boxes]
    assert len(plan({"w": part}, {"w": saved((4, 5), whole)})) == len(whole) == 3
    for number, box in enumerate(whole):
        with pytest.raises(UncoveredError) as caught:
            plan({"w": part}, {"w": saved((4, 5), whole[:number] + whole[number + 1 :])})
        assert (caught.value.path, caught.value.missing, caught.value.needed) == (
            "w",
            math.prod(box.sizes),
            11,
        )


def test_the_message_says_what_is_there_and_what_is_needed() -> None:
    """The path, how many elements, the boxes on both sides, and how many more paths."""
    known = {
        "w": saved((8, 2), [chunk((0, 0), (2, 2)), chunk((2, 0), (2, 2))]),
        "v": saved((4,), []),
        "b": BytesStorageMetadata(),
    }
    with pytest.raises(UncoveredError) as caught:
        plan({"w": torch.zeros(8, 2), "v": torch.zeros(4), "b": 3}, known)
    assert str(caught.value) == (
        "w: 8 of 16 elements are not in it (it has [0:2, 0:2], [2:4, 0:2]; needed are [0:8, 0:2]); and 1 more paths"
    )


def test_a_name_that_was_not_saved_is_uncovered() -> None:
    """Tensors and objects; others' shards may have it."""
    with pytest.raises(UncoveredError, match=r"model\.new: Missing key in checkpoint"):
        plan(
            {"model": {"old": torch.zeros(2), "new": torch.zeros(3)}},
            {"model.old": saved((2,), [chunk((0,), (2,))])},
        )
    with pytest.raises(UncoveredError, match="lr: Missing key"):
        plan({"lr": 0.5}, {})


def test_another_size_is_an_error_of_its_own() -> None:
    """No other source helps: it names the path, both sizes, and what to do."""
    with pytest.raises(
        CheckpointError, match=r"w: it was saved with the size \[4\], the state has \[5\]\. Make"
    ) as caught:
        plan({"w": torch.zeros(5)}, {"w": saved((4,), [chunk((0,), (4,))])})
    assert not isinstance(caught.value, UncoveredError)


def test_a_tensor_does_not_go_into_an_object() -> None:
    """An entry that was saved as a tensor and is none now is named."""
    with pytest.raises(
        CheckpointError, match=r"w: it was saved as a tensor of size \[4\], the state has a NoneType"
    ):
        plan({"w": None}, {"w": saved((4,), [chunk((0,), (4,))])})


def test_thousands_of_tensors_take_milliseconds() -> None:
    """The check itself is a small part of what making the plan takes."""
    targets = {f"w{number}": [chunk((0, 0), (8, 8))] for number in range(5000)}
    halves = [chunk((0, 0), (4, 8)), chunk((4, 0), (4, 8))]
    items = list(
        itertools.chain.from_iterable(
            create_read_items_for_chunk_list(
                name, saved((8, 8), halves[:1] if number % 2 else [boxes[0]]), boxes
            )
            if number % 2
            else create_read_items_for_chunk_list(name, saved((8, 8), boxes), boxes)
            for number, (name, boxes) in enumerate(targets.items())
        )
    )
    began = time.thread_time()
    found = gaps(Wanted(dict(targets)), items)
    assert len(found) == 2500
    assert time.thread_time() - began < 1.0


def test_a_grid_of_boxes_is_counted_without_all_pairs() -> None:
    """As two-dimensional parallelism saves a tensor; one that is gone is found."""
    grid = [chunk((row, column), (1, 1)) for row in range(20) for column in range(20)]
    target = chunk((0, 0), (20, 20))
    items = create_read_items_for_chunk_list("w", saved((20, 20), grid), [target])
    assert gaps(Wanted({"w": [target]}), items) == []
    assert [each.missing for each in gaps(Wanted({"w": [target]}), items[1:])] == [1]
    twice = [*items[1:], replace(items[5])]
    assert [each.missing for each in gaps(Wanted({"w": [target]}), twice)] == [1], (
        "overlap does not hide a hole"
    )


def test_source_is_named() -> None:
    """For a reader of several checkpoints."""
    with pytest.raises(UncoveredError, match=r"^step 4: w: Missing"):
        require_covered(Wanted(absent={"w": 3}), [], {}, "step 4")


def test_what_no_rank_asks_for_is_named() -> None:
    """Names of other ranks alone do not count: whole names, dotted ones, or any beginning."""
    names = ["model.a", "model.b", "rng/1.torch", "rng/10.torch", "structure/3", "own/2/x"]
    assert unconsumed(names, ["model.a"], ["rng/1", "structure/3", "own/2/"]) == ["model.b", "rng/10.torch"]
    assert unconsumed(names[:1], ["model.a", "model.z"]) == []
    require_consumed(names[:1], ["model.a"])
    with pytest.raises(
        CheckpointError, match=r"model\.a, model\.b, rng/1\.torch and 3 more: saved, and the state"
    ):
        require_consumed(names, [])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_directory_is_held_to_the_same(tmp_path: Path) -> None:
    """Stock torch wrote it; the error is ours, names the path, and nothing was copied."""
    dcp.save({"model": {"a": torch.ones(3)}}, checkpoint_id=tmp_path)
    fresh = {"model": {"a": torch.zeros(3), "b": torch.zeros(2)}}
    with pytest.raises(UncoveredError, match=r"checkpoint .*: rank 0: model\.b: Missing key in checkpoint"):
        reader.load(tmp_path, lambda _: fresh)
    assert not fresh["model"]["a"].any()
