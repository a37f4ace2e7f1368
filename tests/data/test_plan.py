"""The order of samples: each once, at any number of ranks, and the same whatever came before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.deal import dealt, picks, share
from holdfast.data.mixing import ROW, quotas
from holdfast.data.order import permuted
from holdfast.data.plan import Part, Plan
from holdfast.data.source_order import key_of
from holdfast.errors import SettingsError

Sample = tuple[str, int, int]
"""Source, split and row."""

WINDOWS = st.lists(st.lists(st.integers(0, 7), min_size=0, max_size=4), min_size=0, max_size=3)
SOURCES = st.lists(st.tuples(WINDOWS, st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=3)


def parts_of(sources: Sequence[tuple[list[list[int]], int, int]], **more: bool) -> list[Part]:
    shares = quotas([weight for *_, weight in sources], [""] * len(sources))
    return [
        Part(f"s{at}", windows, shuffle, share, **more)
        for at, ((windows, shuffle, _), share) in enumerate(zip(sources, shares, strict=True))
    ]


def samples_of(parts: Sequence[Part]) -> list[Sample]:
    """All samples of an epoch, in no order."""
    return [
        (part.name, split, row)
        for part in parts
        for split, rows in enumerate(rows for window in part.windows for rows in window)
        for row in range(rows)
    ]


def step(plan: Plan, taken: int, batch: int, ranks: int) -> list[Sample]:
    """Samples that all ranks read for a batch, rank after rank."""
    found = []
    for rank in range(ranks):
        for pick in picks(taken, batch, *share(batch, rank, ranks), plan.lanes):
            reading = plan.reading(pick)
            read = []
            for take in reading.takes:
                stretches, order = plan.stretches(take)
                rows = [(each.split, row) for each in stretches for row in range(each.first, each.last)]
                rows = rows if order is None else [rows[at] for at in order]
                chosen = rows[take.run.first : take.run.last]
                assert len(chosen) == take.run.last - take.run.first
                read += [(plan.parts[take.source].name, *row) for row in chosen]
            found += read if reading.order is None else [read[at] for at in reading.order]
    return found


def whole(plan: Plan, first: int, last: int) -> list[Sample]:
    """The samples from ``first`` to ``last`` in the order of the plan."""
    return [each for place in range(first, last) for each in step(plan, place, 1, 1)]


@settings(max_examples=150, deadline=None)
@given(
    SOURCES,
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=30),
    st.integers(0, 1000),
)
def test_each_sample_comes_once_in_each_epoch_at_any_ranks_and_batches(
    sources: list[tuple[list[list[int]], int, int]],
    lanes: int,
    epochs: int,
    steps: list[tuple[int, int]],
    seed: int,
) -> None:
    """And a step's samples are those that one rank alone would have."""
    parts = parts_of(sources)
    total = Plan(parts, seed=seed, lanes=lanes, epochs=epochs).total
    assert total == epochs * len(samples_of(parts))
    taken, used = 0, list[Sample]()
    turn = 0
    while taken < total:
        batch, ranks = steps[turn % len(steps)]
        turn += 1
        batch = min(batch, total - taken)
        plan = Plan(parts, seed=seed, lanes=lanes, epochs=epochs)  # as after a restart
        found = step(plan, taken, batch, ranks)
        assert found == step(plan, taken, batch, 1)
        assert sorted(found) == sorted(whole(plan, taken, taken + batch))
        used += found
        taken += batch
    assert Counter(used) == Counter(samples_of(parts) * epochs)
    per_epoch = len(samples_of(parts))
    order = whole(Plan(parts, seed=seed, lanes=lanes, epochs=epochs), 0, total)
    for epoch in range(epochs):
        now = order[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert Counter(now) == Counter(samples_of(parts))


@settings(max_examples=100, deadline=None)
@given(
    SOURCES,
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 6), min_size=1, max_size=3)), max_size=6),
    st.integers(1, 4),
)
def test_what_was_planned_stays_as_windows_are_added(
    sources: list[tuple[list[list[int]], int, int]], added: list[tuple[int, list[int]]], lanes: int
) -> None:
    """The known part of a growing order never changes; no sample comes twice in it."""
    parts = parts_of(sources, grows=True)
    before: list[Sample] = []
    for source, window in [(0, []), *added]:
        at = source % len(parts)
        part = parts[at]
        parts[at] = Part(part.name, [*part.windows, window], part.shuffle, part.quota, grows=True)
        plan = Plan(parts, seed=3, lanes=lanes)
        known = len(before)
        while plan.has(known + 1):
            known += 1
        order = whole(plan, 0, known)
        assert order[: len(before)] == before
        assert len(set(order)) == len(order)
        if len(parts) == 1:
            assert len(order) == plan.per_epoch
        before = order


def test_a_repeating_source_comes_again_in_another_order() -> None:
    plan = Plan(
        [Part("web", [[5, 5], [10]], 10, 5000), Part("code", [[3, 1]], 10, 5000, repeat=True)],
        seed=1,
        lanes=2,
    )
    order = whole(plan, 0, 36)
    code = [each for each in order if each[0] == "code"]
    assert len(code) > 8
    assert set(Counter(code).values()) <= {len(code) // 4, len(code) // 4 + 1}
    assert Counter(each for each in order if each[0] == "web").most_common(1)[0][1] == 1


@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("small", [1, 3, 40])
def test_a_mix_ends_with_its_sources_that_do_not_repeat(lanes: int, small: int) -> None:
    """It went on with the one that repeats alone, without end."""
    parts = [
        Part("web", [[50, 50], [103]], 10, 7000),
        Part("books", [[31]], 10, 1000),
        Part("code", [[small]], 10, 2000, repeat=True),
    ]
    plan = Plan(parts, seed=1, lanes=lanes)
    assert plan.total is not None
    order = whole(plan, 0, plan.total)
    assert Counter(each[0] for each in order) | Counter(web=203, books=31) == Counter(
        each[0] for each in order
    )
    assert len({each for each in order if each[0] != "code"}) == 203 + 31
    assert order[-1][0] != "code"
    assert plan.has(plan.total)
    assert not plan.has(plan.total + 1)
    assert Plan(parts, seed=1, lanes=lanes, epochs=None).total is None
    assert Plan([parts[2]], seed=1, lanes=lanes).total is None
    assert Plan([*parts, Part("new", [[5]], 10, 1000, grows=True)], seed=1, lanes=lanes).total is None


def test_weights_hold_all_along() -> None:
    """To a sample or two, in any stretch of a lane."""
    parts = [
        Part("web", [[4000]], 64, 7000),
        Part("code", [[4000]], 64, 2000),
        Part("math", [[4000]], 64, 1000),
    ]
    order = whole(Plan(parts, seed=1, lanes=1), 0, 3000)
    for start in (0, 500, 1234, 2000):
        counts = Counter(each[0] for each in order[start : start + 500])
        assert abs(counts["web"] - 350) <= 2
        assert abs(counts["code"] - 100) <= 2
        assert abs(counts["math"] - 50) <= 2


def test_a_window_is_shuffled_as_a_whole_and_windows_follow_one_another() -> None:
    parts = [Part("web", [[50] * 20, [50] * 20], 200, 1)]
    order = whole(Plan(parts, seed=1, lanes=2), 0, 2000)
    assert {split < 20 for _, split, _ in order[:1000]} == {True}
    first = [split * 50 + row for _, split, row in order[:1000]]
    assert abs(np.corrcoef(np.arange(1000), first)[0, 1]) < 0.6  # of 20 splits
    assert (np.abs(np.diff(first)) <= 1).mean() < 0.02
    other = [split * 50 + row for _, split, row in whole(Plan(parts, seed=2, lanes=2), 0, 1000)]
    assert first != other
    assert sorted(first) == sorted(other)


@given(st.integers(0, 500), st.integers(0, 2**63 - 1))
def test_a_whole_shuffle_is_a_permutation(size: int, key: int) -> None:
    assert sorted(permuted(size, key).tolist()) == list(range(size))


def test_whole_shuffles_part_neighbours() -> None:
    one, two = (permuted(10_000, key_of("x", number)) for number in (1, 2))
    for order in (one, two):
        assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05
        assert (np.abs(np.diff(order)) < 100).mean() < 0.05
    assert (one == two).mean() < 0.01


def test_a_rank_reads_few_splits_where_lanes_suffice() -> None:
    """Eight ranks of eight lanes read no split in common, but for those at the edges."""
    plan = Plan([Part("web", [[100] * 64], 100, 1)], seed=1, lanes=8)
    read: Counter[int] = Counter()
    for rank in range(8):
        splits = set()
        for taken in range(0, 6400, 64):
            for pick in picks(taken, 64, *share(64, rank, 8), 8):
                for take in plan.reading(pick).takes:
                    splits |= {each.split for each in plan.stretches(take)[0]}
        read.update(splits)
    assert sum(read.values()) <= 64 + 8


@given(st.integers(0, 200), st.integers(1, 9))
def test_lanes_share_out_all(count: int, lanes: int) -> None:
    assert sum(dealt(count, lane, lanes) for lane in range(lanes)) == count


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_quotas_add_up(weights: list[float]) -> None:
    found = quotas(weights, [str(at) for at in range(len(weights))])
    assert sum(found) == ROW
    assert min(found) >= 1


def test_many_sources_of_next_to_no_weight_leave_the_others_their_part() -> None:
    found = quotas([1.0, 1.0, *[1e-9] * 6000], [str(at) for at in range(6002)])
    assert sum(found) == ROW
    assert set(found[2:]) == {1}
    assert min(found[:2]) > 1990


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_weights_must_be_positive(weight: float) -> None:
    with pytest.raises(SettingsError, match=r"weights\['code'\] = .*expected a positive number"):
        quotas([0.5, weight], ["web", "code"])
