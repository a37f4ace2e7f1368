"""Ranks that are slower than their peers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.job import Parallelism
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.stragglers import RankPhases, Straggler, stragglers

LIMITS = Policy.load().detect.straggler


def rank(number: int, **phases: float) -> RankPhases:
    return RankPhases(rank=number, machine=f"m{number // 2}", phases=phases)


def judged(ranks: list[RankPhases], **parallel: Any) -> list[Straggler]:
    return stragglers(ranks, len(ranks), Parallelism(**parallel), LIMITS, frozenset({"checkpoint"}))


def test_one_slow_rank_is_named_with_its_phase() -> None:
    """The others wait for it elsewhere, which is not held against them."""
    ranks = [rank(n, forward=0.20 + n / 1000, backward=0.9) for n in range(7)]
    found = judged([*ranks, rank(7, forward=0.45, backward=0.3)])
    assert [(each.rank, each.machine, each.phase) for each in found] == [(7, "m3", "forward")]
    assert found[0].factor > 2


def test_many_slow_ranks_are_no_stragglers() -> None:
    """Half of them wait for the other half: the slow ones cannot be named."""
    assert judged([rank(n, forward=0.2 if n < 4 else 0.6) for n in range(8)]) == []


def test_stages_of_a_pipeline_differ_by_right() -> None:
    """The last stage computes the loss as well."""
    ranks = [rank(n, forward=0.2 if n < 4 else 0.5) for n in range(8)]
    assert judged(ranks, pp=2) == []
    slow = [*ranks[:7], rank(7, forward=0.9)]
    assert [each.rank for each in judged(slow, pp=2)] == [7]


def test_phases_that_wait_are_not_judged() -> None:
    """One rank writes the checkpoint."""
    assert judged([*(rank(n, checkpoint=0.1) for n in range(7)), rank(7, checkpoint=9.0)]) == []


def test_small_differences_are_none() -> None:
    """Milliseconds, however large a part of a short phase."""
    assert judged([*(rank(n, data=0.001) for n in range(7)), rank(7, data=0.02)]) == []


def test_two_ranks_do_not_show_which_is_slow() -> None:
    """With two peers it cannot be known which is slow."""
    assert judged([rank(0, forward=0.1), rank(1, forward=0.9)]) == []


@given(st.permutations(range(8)), st.lists(st.floats(0.01, 2.0), min_size=8, max_size=8))
def test_the_order_of_ranks_does_not_matter(order: list[int], seconds: list[float]) -> None:
    """And never are more than the allowed part of the peers named."""
    ranks = [rank(n, forward=each) for n, each in enumerate(seconds)]
    found = judged(ranks)
    assert stragglers([ranks[n] for n in order], 8, Parallelism(), LIMITS) == found
    assert len(found) <= LIMITS.most_share * 8
