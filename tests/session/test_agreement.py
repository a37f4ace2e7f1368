"""What ranks learn of each other's votes, over the group that they really use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from torch import distributed as dist

from holdfast.session.agreement import Group, Result, Vote

VOTE = Vote(number=3, step=7, plan="plan", saved=True, copied=False)


def exchanged(*votes: Vote) -> list[Result]:
    """Return what each rank received."""
    store = dist.HashStore()  # type: ignore[no-untyped-call]

    def on_rank(rank: int) -> Result:
        group = Group()
        group._group = dist.ProcessGroupGloo(store, rank, len(votes))  # type: ignore[attr-defined]
        return group.exchange(votes[rank], lambda _: False)

    with ThreadPoolExecutor(len(votes)) as pool:
        return list(pool.map(on_rank, range(len(votes))))


@pytest.mark.parametrize("late", [(), (0,), (1,), (0, 1)])
def test_one_rank_whose_peers_are_late_is_enough_for_all(late: tuple[int, ...]) -> None:
    """Their clocks may differ by the moment that lies between "not yet late" and "late"."""
    results = exchanged(*(replace(VOTE, late=rank in late) for rank in range(2)))
    assert [result.late for result in results] == [bool(late)] * 2
    assert all(result.common and not result.copied for result in results)
