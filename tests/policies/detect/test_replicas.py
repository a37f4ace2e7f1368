"""Ranks whose weights differ from their replicas': a table of jobs, each with the expected verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.models.job import Parallelism
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.replica_rounds import interval, round_of
from holdfast.policies.detect.replicas import HeldState, KnownResults, RoundResult, judge
from holdfast.policies.diagnose.groups import place_of

LIMITS = Policy.load().detect.replicas
WEIGHT, OTHER, MOMENT = "model.w", "model.v", "optimizer.state.w.exp_avg"
FROZEN, BUFFER, COPY = "model.frozen", "model.bn.running_mean", "ema.w"
FLIP = 1 << 40

State = Callable[[int, int], dict[str, int]]
"""Hashes of a rank's state, by path: of its number and the step."""


def trained(rank: int, step: int) -> dict[str, int]:
    """Plain data parallelism: all alike, and new at each step."""
    return {path: hash((path, step)) & 0xFFFF for path in (WEIGHT, OTHER, MOMENT)}


def plus(base: State, path: str, value: Callable[[int, int], int | None]) -> State:
    """With one path more, or another value of it; where ``value`` has one."""

    def state(rank: int, step: int) -> dict[str, int]:
        digest = value(rank, step)
        return base(rank, step) | ({} if digest is None else {path: digest})

    return state


def flipped(base: State, since: int, ranks: Sequence[int], paths: Sequence[str] = (WEIGHT,)) -> State:
    """From step ``since`` on another value on some ranks, each its own."""

    def state(rank: int, step: int) -> dict[str, int]:
        held = base(rank, step)
        return held | {
            p: held[p] ^ (FLIP + rank) for p in paths if rank in ranks and step >= since and p in held
        }

    return state


def play(
    state: State, ranks: Sequence[int], steps: Sequence[int], layout: Parallelism | None = None
) -> list[RoundResult]:
    """The result of each round."""
    layout, world = layout or Parallelism(), max(ranks) + 1
    learned: dict[tuple[tuple[int, ...], str], KnownResults] = {}
    found = []
    for step in steps:
        held = []
        for rank in ranks:
            at = place_of(rank, world, layout)
            digests = dict(sorted(state(rank, step).items()))
            held.append(HeldState(rank, (at.tp, at.pp, at.ep), tuple(digests), tuple(digests.values())))
        one, learned = judge(held, learned, LIMITS)
        found.append(one)
    return found


frozen = plus(trained, FROZEN, lambda rank, step: 7)
sharded = lambda rank, step: {f"model.w[{rank}]": step * 100 + rank}  # noqa: E731
hsdp = lambda rank, step: {f"model.w[{rank % 2}]": step * 100 + rank % 2, f"model.v[{rank % 2}]": step}  # noqa: E731
tp = lambda rank, step: {f"model.w[{rank % 2}]": step * 9 + rank % 2, "model.norm": step}  # noqa: E731
drifting = lambda rank, step: {"model.norm": step * 100 + rank % 2}  # noqa: E731
two_trained = plus(lambda rank, step: {}, WEIGHT, lambda rank, step: step)


@dataclass(frozen=True)
class Case:
    """One job, and what its last round is expected to say."""

    what: str
    state: State
    ranks: Sequence[int] = range(4)
    steps: Sequence[int] = (1, 2, 3, 4, 5)
    layout: Parallelism | None = None
    odd: tuple[int, ...] = ()
    split: tuple[str, ...] = ()
    compared: bool = True
    by_design: bool = False
    good: bool | None = None


CASES = [
    # Nothing is wrong
    Case("DDP", trained),
    Case("the first rounds compare nothing", trained, steps=(1, 2), compared=False),
    Case("frozen weights", frozen),
    Case(
        "running statistics differ from the first step on", plus(trained, BUFFER, lambda r, s: r * 1000 + s)
    ),
    Case("running statistics that begin alike", plus(trained, BUFFER, lambda r, s: r * s if s > 4 else 0)),
    Case(
        "running statistics that were frozen for long and then are not",
        plus(trained, BUFFER, lambda r, s: r * s + s if s > 6 else 0),
        steps=range(1, 9),
    ),
    Case("a buffer of one rank alone", plus(trained, BUFFER, lambda r, s: s if r == 0 else None)),
    Case("a buffer that counts what each rank saw", plus(trained, BUFFER, lambda r, s: r + 1)),
    Case(
        "an average that rank 0 keeps, from step 5 on",
        plus(trained, COPY, lambda r, s: s if r == 0 and s > 4 else 0),
        steps=range(1, 12),
    ),
    Case(
        "the best weights so far, which rank 0 copies now and then",
        plus(
            plus(
                plus(plus(trained, "best.a", best := lambda r, s: s > 5 and r == 0), "best.b", best),
                "best.c",
                best,
            ),
            "best.d",
            best,
        ),
        steps=range(1, 12),
    ),
    Case("FSDP: no other rank has it", sharded, compared=False),
    Case("HSDP", hsdp),
    Case("TP: parts differ, what is the same on all is", tp, layout=Parallelism(tp=2)),
    Case("TP whose norms drift apart between its ranks", drifting, layout=Parallelism(tp=2)),
    Case("the same drift where the layout is not known: it never agreed", drifting, compared=False),
    Case(
        "stages with names of their own that are alike",
        lambda r, s: {"layers.0.w": s * 10 + r // 2},
        layout=Parallelism(pp=2),
    ),
    Case(
        "experts with names of their own", lambda r, s: {"expert.w": s * 10 + r % 2}, layout=Parallelism(ep=2)
    ),
    Case("one rank", trained, ranks=(0,), compared=False),
    Case(
        "local SGD that was always seen when it had averaged, and then in between",
        lambda r, s: {WEIGHT: s + 100 * r * (s % 5 > 0), OTHER: s + 100 * r * (s % 5 > 0)},
        steps=(5, 10, 15, 20, 23),
        by_design=True,
        good=True,
    ),
    Case(
        "and afterwards it is not compared",
        lambda r, s: {WEIGHT: s + 100 * r * (s % 5 > 0), OTHER: s + 100 * r * (s % 5 > 0)},
        steps=(5, 10, 15, 20, 23, 24),
        compared=False,
    ),
    Case("a restart: steps come again", trained, steps=(1, 2, 3, 4, 2, 3)),
    Case("an unfrozen layer", plus(trained, FROZEN, lambda r, s: max(s, 6)), steps=range(1, 9)),
    # Something is
    Case("one odd of four", flipped(trained, 5, [2]), odd=(2,)),
    Case("it stays odd", flipped(trained, 4, [2]), odd=(2,)),
    Case("in the optimizer's state alone", flipped(trained, 5, [1], [MOMENT]), odd=(1,)),
    Case("everything of one rank", flipped(trained, 5, [3], [WEIGHT, OTHER, MOMENT]), odd=(3,)),
    Case(
        "two odd of four, each its own way: there is no majority",
        flipped(trained, 5, [1, 2]),
        split=(WEIGHT,),
    ),
    Case("two odd of six", flipped(trained, 5, [1, 2]), ranks=range(6), odd=(1, 2)),
    Case("two replicas", flipped(trained, 5, [1]), ranks=range(2), split=(WEIGHT,)),
    Case(
        "two replicas with one tensor in all", flipped(two_trained, 5, [1]), ranks=range(2), split=(WEIGHT,)
    ),
    Case("one of three", flipped(trained, 5, [0]), ranks=range(3), odd=(0,)),
    Case(
        "HSDP: one of three replicas of a shard",
        flipped(hsdp, 5, [4], ["model.w[0]"]),
        ranks=range(6),
        odd=(4,),
    ),
    Case("HSDP: two replicas", flipped(hsdp, 5, [1], ["model.w[1]"]), split=("model.w[1]",)),
    Case(
        "TP: one of four replicas of its part",
        flipped(tp, 5, [3], ["model.w[1]"]),
        ranks=range(8),
        layout=Parallelism(tp=2),
        odd=(3,),
    ),
    Case("before anything was learned", flipped(trained, 3, [2]), compared=True),
    Case("a frozen weight: the next round will show it", flipped(frozen, 5, [2], [FROZEN]), good=False),
    Case("a frozen weight", flipped(frozen, 4, [2], [FROZEN]), odd=(2,)),
    Case("a frozen weight of two replicas", flipped(frozen, 4, [1], [FROZEN]), ranks=range(2), odd=(1,)),
    Case("after a restart", flipped(trained, 8, [2]), steps=(1, 2, 3, 4, 5, 3, 4, 8), odd=(2,)),
    Case("a rank did not report", flipped(trained, 5, [2]), ranks=(0, 1, 2), odd=(2,)),
    Case(
        "beside running statistics",
        flipped(plus(trained, BUFFER, lambda r, s: r * 1000 + s), 5, [2]),
        odd=(2,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_decision(case: Case) -> None:
    """As the table has it; and rounds before a fault say nothing."""
    *before, last = play(case.state, case.ranks, case.steps, case.layout)
    assert (tuple(last.odd), last.split) == (case.odd, case.split), last
    assert bool(last.compared) == case.compared, last
    assert bool(last.by_design) == case.by_design, last
    expected = not (case.odd or case.split) if case.good is None else case.good
    assert last.good == expected, last
    first_fault = next((n for n, one in enumerate(before) if one.odd or one.split), len(before))
    accused = {rank for one in before[first_fault:] for rank in one.odd}
    assert accused <= set(case.odd), before


def test_it_says_where() -> None:
    """By path."""
    *_, last = play(flipped(trained, 5, [3], [WEIGHT, MOMENT]), range(4), range(1, 6))
    assert last.odd == {3: (WEIGHT, MOMENT)}


@given(st.lists(st.integers(0, 2), min_size=12, max_size=40), st.integers(2, 5))
def test_a_job_whose_ranks_never_agreed_accuses_none(noise: list[int], world: int) -> None:
    """Whatever its values are, as long as they differ in each of the first rounds and never agree three times."""

    def state(rank: int, step: int) -> dict[str, int]:
        return {WEIGHT: rank if step % 3 == 0 else noise[(rank + step) % len(noise)]}

    found = play(state, range(world), range(12))
    assert not any(one.odd or one.split for one in found)


@given(st.integers(3, 9), st.data())
def test_a_minority_is_named_whichever_it_is(world: int, data: st.DataObject) -> None:
    """And no other, wherever it flipped."""
    rank = data.draw(st.integers(0, world - 1))
    path = data.draw(st.sampled_from([WEIGHT, OTHER, MOMENT]))
    *before, last = play(flipped(trained, 6, [rank], [path]), range(world), range(1, 7))
    assert last.odd == {rank: (path,)}
    assert all(one.good for one in before)


def test_rounds_are_often_at_first() -> None:
    """And every so many saves later on."""
    begins = [number for number in range(1, 320) if round_of(number, 100) != round_of(number - 1, 100)]
    assert begins == [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]
    assert {round_of(number, 0) for number in range(50)} == {0}


def test_a_resumed_job_settles_first() -> None:
    """But not beyond the usual interval."""

    def begins(every: int) -> list[int]:
        rounds = [round_of(number, every, resumed=True) for number in range(320)]
        return [number for number in range(1, 320) if rounds[number] != rounds[number - 1]]

    assert begins(100) == [8, 16, 32, 64, 100, 200, 300]
    assert begins(150)[:2] == [8, 16]
    assert begins(5)[:2] == [5, 10]
    assert begins(0) == []


@given(st.integers(1, 300), st.integers(1, 10_000))
@example(2, 1)
@example(256, 255)
def test_rounds_only_grow(every: int, number: int) -> None:
    """From one save to the next by one at most."""
    assert 0 <= round_of(number + 1, every) - round_of(number, every) <= 1


def test_a_checkpoint_from_before_a_difference_is_kept() -> None:
    """Comparisons are closer together than the oldest and the newest checkpoint that stay in S3."""
    assert interval(100, 20, 3) == 40
    assert interval(100, 500, 3) == 100
    assert interval(100, 20, 1) == 20
    assert interval(100, 0, 3) == 100
    assert interval(0, 20, 3) == 0
