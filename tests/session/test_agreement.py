"""Exchange of ranks' votes, over the group that they really use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist

from holdfast.session.agreement import Group, Result, Vote

VOTE = Vote(number=3, step=7, plan="plan", saved=True, copied=False)


def exchanged(*votes: Vote, by_first: bool = False) -> list[Result]:
    """Return what each rank received."""
    store = dist.HashStore()  # type: ignore[no-untyped-call]

    def on_rank(rank: int) -> Result:
        group = Group()
        group._group = dist.ProcessGroupGloo(store, rank, len(votes))  # type: ignore[attr-defined]
        group.by_first = by_first
        return group.exchange(votes[rank], lambda _: False)

    with ThreadPoolExecutor(len(votes)) as pool:
        return list(pool.map(on_rank, range(len(votes))))


@pytest.mark.parametrize("by_first", [False, True])
@pytest.mark.parametrize("late", [(), (0,), (1,), (0, 1)])
def test_one_rank_whose_peers_are_late_is_enough_for_all(late: tuple[int, ...], by_first: bool) -> None:
    """Their clocks may differ by the moment that lies between "not yet late" and "late"."""
    results = exchanged(*(replace(VOTE, late=rank in late) for rank in range(2)), by_first=by_first)
    assert [result.late for result in results] == [bool(late)] * 2
    assert all(result.common and not result.copied for result in results)


VOTES = st.builds(
    Vote,
    number=st.integers(3, 4),
    step=st.integers(7, 8),
    plan=st.sampled_from(["plan", "other"]),
    saved=st.booleans(),
    copied=st.booleans(),
    late=st.booleans(),
    skipped=st.booleans(),
    failed=st.booleans(),
    needs_plan=st.booleans(),
    rejects=st.booleans(),
    calls=st.integers(0, 1 << 40),
    replicated=st.tuples(st.integers(0, (1 << 62) - 1)),
)


@settings(max_examples=15)
@given(st.lists(VOTES, min_size=2, max_size=5))
def test_all_ranks_learn_the_same_whichever_way_their_votes_go(votes: list[Vote]) -> None:
    """Around the ring, or by the first rank."""
    around = exchanged(*votes)
    assert all(each == around[0] for each in around)
    assert exchanged(*votes, by_first=True) == around
