"""The vote for the machines that make a job slow: the group that lags most often, and none that is ahead."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.models.agent import Frame, StackDump
from holdfast.policies.config.policy import Policy
from holdfast.policies.diagnose import groups, slow_vote
from holdfast.policies.diagnose.aggregate import Aggregation, aggregate
from tests.policies.make import job


def looks(*rounds: tuple[int, ...]) -> list[Aggregation]:
    return [Aggregation(outliers=outliers) for outliers in rounds]


LIMITS = Policy.load().aggregate


def test_the_group_that_lags_in_most_rounds_is_evicted() -> None:
    """Four of five looks."""
    found = slow_vote.decide(looks((4, 5), (4,), (), (5,), (4, 5)), job(), LIMITS)
    assert found.suspects == ("m2",)
    assert "machine m2 4x" in found.reasons[0]


def test_half_of_the_machines_cannot_be_outvoted_by_the_other_half() -> None:
    """Their stacks do not show which of two sides lags."""
    assert slow_vote.decide(looks(*[(4, 6)] * 5), job(), LIMITS).suspects == ()


@pytest.mark.parametrize(
    "rounds",
    [
        [(), (), (), (), ()],
        [(0,), (2,), (4,), (6,), ()],
        [(0,), (0,), (2,), (2,), ()],
        [(0,), (), (), (), ()],
    ],
)
def test_what_does_not_repeat_accuses_none(rounds: list[tuple[int, ...]]) -> None:
    """Once is nothing, and a tie is none."""
    assert slow_vote.decide(looks(*rounds), job(), LIMITS).suspects == ()


def test_a_pipeline_that_lags_is_evicted_as_a_group() -> None:
    """Over-eviction within the limit: outliers on two machines of one group."""
    big = job(machines=16, per=1, tp=2, pp=4)
    found = slow_vote.decide(looks(*[(4, 5)] * 5), big, LIMITS)
    assert found.suspects == ("m4", "m5")


def test_a_group_that_only_its_process_groups_show_is_evicted_too() -> None:
    """A job file without a layout has one group of all ranks, which explains nothing."""
    flat = job(machines=16, per=1)
    lagging = looks(*[(2, 5)] * 4, (2, 9))
    assert slow_vote.decide(lagging, flat, LIMITS).suspects == ()
    made = groups.observed([(2, 5), (3, 4), (2, 3, 4, 5, 6, 7, 8, 9)], 16)
    found = slow_vote.decide(lagging, flat, LIMITS, made)
    assert found.suspects == ("m2", "m5")
    assert "process group 1 4x" in found.reasons[0]


def test_groups_are_asked_for_where_they_may_decide() -> None:
    """One machine needs no group; half of the job is not counted."""
    assert slow_vote.on_several(looks((4,), (4, 6)), job(machines=6))
    assert not slow_vote.on_several(looks((4, 5), (0, 2, 4)), job(machines=6))


WAIT = Frame(function="all_reduce", file="torch/distributed/distributed_c10d.py", line=1)
FORWARD = Frame(function="forward", file="model.py", line=1)


@pytest.mark.parametrize(
    ("steps", "outliers"),
    [
        ({2: 8}, ()),  # it left the collective in which the others are
        ({}, (2,)),  # it has not come to it
        ({2: None}, (2,)),
        ({2: 8, 5: 8}, (2,)),  # no step ahead of rank 5, which waits
        ({rank: None for rank in range(8) if rank != 2}, (2,)),
        ({2: 6}, (2,)),
    ],
)
def test_a_rank_that_is_a_step_ahead_gets_no_vote(
    steps: Mapping[int, int | None], outliers: tuple[int, ...]
) -> None:
    """Rank 2 computes while all others wait; they have completed step 7 but where another one is given."""
    stacks = [
        StackDump(
            machine=job().machine_of(rank),
            pid=100 + rank,
            rank=rank,
            frames=(FORWARD if rank == 2 else WAIT,),
            step=steps.get(rank, 7),
        )
        for rank in range(8)
    ]
    found = slow_vote.without_ahead(aggregate(stacks, job()), stacks)
    assert found.outliers == outliers
    votes = slow_vote.decide([found] * 5, job(), LIMITS)
    assert votes.suspects == (("m1",) if outliers else ())
