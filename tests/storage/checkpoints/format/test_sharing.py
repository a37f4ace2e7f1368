"""Each box is saved once, by one of its holders, and no rank saves much more than others."""

from __future__ import annotations

from collections import Counter, defaultdict
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.storage.checkpoints.format import sharing
from holdfast.storage.checkpoints.format.sharing import Items, Pieces, share_out

Held = tuple[int, int, int, frozenset[int]]  # name, rows, bytes per row, holders


def items_of(held: list[Held]) -> Items:
    rows = sorted((rank, name, rows, width) for name, rows, width, ranks in held for rank in ranks)
    columns = np.array(rows, np.int64).reshape(-1, 4)
    boxes = np.zeros((len(rows), 2, 1), np.int64)
    boxes[:, 1, 0] = columns[:, 2]
    return Items(columns[:, 0], columns[:, 1], boxes, columns[:, 3])


@st.composite
def states(draw: st.DrawFn) -> tuple[list[Held], np.ndarray]:
    ranks = draw(st.integers(1, 12))
    per_machine = draw(st.integers(1, 4))
    holders = st.frozensets(st.integers(0, ranks - 1), min_size=1)
    sets = draw(st.lists(holders, min_size=1, max_size=4))
    held = [
        (name, draw(st.integers(0, 60)), draw(st.integers(1, 5000)), draw(st.sampled_from(sets)))
        for name in range(draw(st.integers(1, 20)))
    ]
    return held, np.arange(ranks) // per_machine


def loads(items: Items, pieces: Pieces, ranks: int) -> np.ndarray:
    nbytes = items.row_nbytes[pieces.item] * (pieces.stop - pieces.start)
    return np.bincount(items.rank[pieces.item], weights=nbytes, minlength=ranks)


@settings(max_examples=200)
@given(states(), st.sampled_from([1, 1 << 20]))
def test_every_row_is_saved_once_by_a_holder(made: tuple[list[Held], np.ndarray], smallest: int) -> None:
    """The parts of each box follow one another without gap or overlap; no rank saves what it does not hold."""
    held, machines = made
    items = items_of(held)
    with mock.patch.object(sharing, "SMALLEST_PIECE_BYTES", smallest):
        pieces = share_out(items, machines)
    parts = defaultdict(list)
    for item, start, stop in zip(pieces.item, pieces.start, pieces.stop, strict=True):
        parts[items.name[item]].append((start, stop))
        assert items.rank[item] in held[items.name[item]][3]
    for name, rows, _, _ in held:
        at = 0
        for start, stop in sorted(parts[name]):
            assert start == at
            at = stop
        assert at == rows
        assert rows == 0 or all(start < stop for start, stop in parts[name])


@settings(max_examples=200)
@given(states())
def test_replicas_are_spread_evenly(made: tuple[list[Held], np.ndarray]) -> None:
    """Boxes of all ranks: no two ranks differ by more than one piece, so neither do machines of equal size much."""
    held, machines = made
    everyone = frozenset(range(len(machines)))
    items = items_of([(name, rows, width, everyone) for name, rows, width, _ in held])
    with mock.patch.object(sharing, "SMALLEST_PIECE_BYTES", 1):
        pieces = share_out(items, machines)
    load = loads(items, pieces, len(machines))
    largest = (items.row_nbytes[pieces.item] * (pieces.stop - pieces.start)).max()
    assert load.max() - load.min() <= max(largest, 1) + len(pieces.item)


def test_one_large_tensor_is_cut_among_its_holders() -> None:
    """An embedding that is most of the state does not fall to one rank."""
    items = items_of([(0, 4000, 4096, frozenset(range(4))), (1, 4000, 64, frozenset(range(4)))])
    load = loads(items, share_out(items, np.array([0, 0, 1, 1])), 4)
    assert load.max() < 1.1 * load.mean()


def test_machines_take_turns() -> None:
    """Fewer pieces than ranks: they go to different machines."""
    items = items_of([(name, 1, 100, frozenset(range(8))) for name in range(4)])
    pieces = share_out(items, np.arange(8) // 2)
    assert Counter((items.rank[pieces.item] // 2).tolist()) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_what_others_hold_alone_counts() -> None:
    """A rank that already saves much of its own gets less of the common state."""
    alone: list[Held] = [(0, 100, 1000, frozenset({0}))]
    common: list[Held] = [(name, 10, 1000, frozenset({0, 1})) for name in range(1, 11)]
    items = items_of(alone + common)
    assert loads(items, share_out(items, np.array([0, 1])), 2).tolist() == [100_000, 100_000]


@pytest.mark.parametrize("broken", ["_mix"])
def test_hashes_that_collide_change_nothing(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Boxes and holder sets are compared by more than their hashes."""
    monkeypatch.setattr(sharing, broken, lambda value: value * np.uint64(0) + np.uint64(1))
    held: list[Held] = [(name, 2, 10, frozenset({name % 3, (name + 1) % 3})) for name in range(9)]
    items = items_of(held)
    pieces = share_out(items, np.arange(3))
    assert sorted(items.name[pieces.item].tolist()) == list(range(9))
    assert loads(items, pieces, 3).tolist() == [60, 60, 60]
