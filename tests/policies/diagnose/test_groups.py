"""Parallel groups in any order of the axes."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.models.job import JobSpec, Parallelism
from holdfast.policies.diagnose.groups import groups, groups_of, observed, place_of, stage_of

SIZES = st.sampled_from([1, 2, 3])
ORDERS = st.sampled_from(["-".join(order) for order in permutations(("tp", "cp", "ep", "dp", "pp"))])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, Parallelism]:
    tp, pp, cp, dp = draw(SIZES), draw(SIZES), draw(SIZES), draw(SIZES)
    ep = draw(st.sampled_from([size for size in range(1, cp * dp + 1) if cp * dp % size == 0]))
    return tp * pp * cp * dp, Parallelism(tp=tp, pp=pp, cp=cp, ep=ep, order=draw(ORDERS))


@given(layouts())
def test_groups_of_each_kind_divide_the_ranks(layout: tuple[int, Parallelism]) -> None:
    """Every rank is in exactly one of each kind that has more than one rank, of the right size."""
    world, parallelism = layout
    sizes = {"dp": parallelism.dp(world)} | {
        kind: getattr(parallelism, kind) for kind in ("tp", "pp", "cp", "ep")
    }
    for kind, size in sizes.items():
        mine = [group for group in groups(world, parallelism) if group.kind == kind]
        ranks = sorted(rank for group in mine for rank in group.ranks)
        assert ranks == (list(range(world)) if size > 1 else [])
        assert {len(group.ranks) for group in mine} <= {size}


@given(layouts())
def test_members_of_a_group_differ_in_its_axis_alone(layout: tuple[int, Parallelism]) -> None:
    """And experts in what CP and DP have together."""
    world, parallelism = layout
    for group in groups(world, parallelism):
        places = [place_of(rank, world, parallelism).model_dump() for rank in group.ranks]
        assert [place[group.kind] for place in places] == list(range(len(places)))
        free = {"cp", "dp", "ep"} if group.kind in {"cp", "dp", "ep"} else {group.kind}
        assert all(place[axis] == places[0][axis] for place in places for axis in place.keys() - free)


@given(layouts())
def test_the_groups_of_one_rank_are_those_that_hold_it(layout: tuple[int, Parallelism]) -> None:
    """Names and all; and its stage is its place in PP."""
    world, parallelism = layout
    every = groups(world, parallelism)
    for rank in range(world):
        assert groups_of(rank, world, parallelism) == [group for group in every if rank in group.ranks]
        assert stage_of(rank, world, parallelism) == place_of(rank, world, parallelism).pp


def test_experts_are_neighbours_or_apart_as_the_order_says() -> None:
    """Megatron's expert groups of eight ranks with TP 2 and EP 2: next to one another, or one of each half of DP."""
    near = [group.ranks for group in groups(8, Parallelism(tp=2, ep=2)) if group.kind == "ep"]
    assert near == [(0, 2), (4, 6), (1, 3), (5, 7)]
    far = Parallelism(tp=2, ep=2, order="tp-cp-dp-ep-pp")
    assert [group.ranks for group in groups(8, far) if group.kind == "ep"] == [(0, 4), (2, 6), (1, 5), (3, 7)]


@given(SIZES, SIZES, SIZES)
def test_the_default_is_megatrons(tp: int, pp: int, dp: int) -> None:
    """As jobs without an order were numbered before."""
    parallelism = Parallelism(tp=tp, pp=pp)
    for rank in range(tp * pp * dp):
        at = place_of(rank, tp * pp * dp, parallelism)
        assert rank == (at.pp * dp + at.dp) * tp + at.tp


@given(layouts())
def test_groups_read_from_processes_are_those_of_the_job_file(layout: tuple[int, Parallelism]) -> None:
    """Each once, however many ranks report it; a group of all ranks separates none."""
    world, parallelism = layout
    reported = [group.ranks for group in groups(world, parallelism)] * 2 + [
        tuple(range(world)),
        (0, world + 5),
    ]
    expected = {tuple(sorted(group.ranks)) for group in groups(world, parallelism)} - {tuple(range(world))}
    assert {group.ranks for group in observed(reported, world)} == expected


@pytest.mark.parametrize("order", ["tp-pp-dp", "tp-cp-ep-dp-dp", "tp,cp,ep,dp,pp", ""])
def test_an_order_names_each_axis_once(order: str) -> None:
    """The message has the expected form."""
    with pytest.raises(
        ValidationError, match=r"parallelism.order = .*expected each of cp, dp, ep, pp, tp once"
    ):
        Parallelism(order=order)


def test_a_layout_that_does_not_divide_the_ranks_is_refused() -> None:
    """Experts are spread over CP x DP."""
    with pytest.raises(ValidationError, match=r"lcm\(cp, ep\) = 24 does not divide the 32 ranks"):
        JobSpec(
            name="j",
            script="t.py",
            machines=4,
            ranks_per_machine=8,
            parallelism=Parallelism(tp=4, cp=2, ep=3),
        )
