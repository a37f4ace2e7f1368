"""Ranks agree on the calls at which they save, however late each learns the last one's outcome."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.session.agreement import Result
from holdfast.session.due_calls import DueCalls

CALLS = 240
_PARTS = 20
"""Moments between two calls at which news arrives."""


@dataclass
class Rank:
    """One rank: its decisions, and its votes, which meet the others' in order."""

    saves_s: float
    receives_s: float
    due: DueCalls = field(default_factory=DueCalls)
    votes: list[tuple[int, bool]] = field(default_factory=list)
    """(Call, whether it was saved), in order."""
    ready: deque[float] = field(default_factory=deque)
    """When each vote is given that no other rank has met yet."""
    news: deque[tuple[float, Result]] = field(default_factory=deque)
    received: int = 0

    def vote(self, call: int, now: float, *, saves: bool) -> None:
        """Save or not, then vote."""
        self.votes.append((call, saves))
        self.ready.append(now + (self.saves_s if saves else 0.0))

    def receive(self, now: float) -> None:
        """Take the outcomes that have arrived."""
        while self.news and self.news[0][0] < now:
            at, result = self.news.popleft()
            self.due.take(self.votes[self.received][0], result)
            self.received += 1
            if (missed := self.due.missed()) is not None:
                self.vote(missed[0], at, saves=False)


class Training:
    """Ranks that call ``checkpoint`` once a second, at the same moment."""

    def __init__(self, delays: list[tuple[float, float]], distance: int = 1) -> None:
        """``distance``: calls from one save to the next that a rank wants."""
        self.ranks = [Rank(*each) for each in delays]
        self.distance = distance
        self.common: list[int] = []
        """Calls at which all ranks saved."""
        self.outcomes = 0

    def call(self, number: int, forced: tuple[int, ...] = ()) -> None:
        """Make one call on all ranks; ``forced``: those that must save now."""
        for part in range(_PARTS):
            self._meet()
            for rank in self.ranks:
                rank.receive(number - 1 + part / _PARTS)
        # One that must save waits for its last outcome, and so for the votes of those that know theirs.
        for at in sorted(range(len(self.ranks)), key=lambda at: self.ranks[at].due.unknown):
            rank = self.ranks[at]
            if at in forced and rank.due.unknown:
                self.wait()
            known = not rank.due.unknown
            if rank.due.decide(number, number, forced=at in forced):
                rank.vote(number, number, saves=known)

    def wait(self) -> None:
        """Have all ranks wait until they know what became of their votes, as far as the others voted."""
        for _ in range(3):
            self._meet()
            for rank in self.ranks:
                rank.receive(math.inf)

    def _meet(self) -> None:
        while all(len(rank.votes) > self.outcomes for rank in self.ranks):
            votes = [rank.votes[self.outcomes] for rank in self.ranks]
            given = max(rank.ready.popleft() for rank in self.ranks)
            calls, saved = {call for call, _ in votes}, [saves for _, saves in votes]
            result = Result(
                common=len(calls) == 1 and all(saved),
                call=max(calls),
                same_call=len(calls) == 1,
                skipped=not all(saved),
                calls=max(rank.due.decided for rank in self.ranks),
                distance=self.distance,
            )
            if result.common:
                self.common.append(result.call)
            for rank in self.ranks:
                rank.news.append((given + rank.receives_s, result))
            self.outcomes += 1


DELAYS = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 3.0)), min_size=2, max_size=8)
"""By rank: how long its saves take, and how much later it hears of an outcome; in steps."""


def test_ranks_that_know_at_once_save_at_every_call() -> None:
    training = Training([(0.5, 0.0), (0.3, 0.1)])
    for number in range(1, CALLS):
        training.call(number)
    assert training.common == [*range(1, CALLS - 1)]


def test_a_rank_that_knows_after_the_next_call_costs_few_saves() -> None:
    """It would begin its save a call later than the others each time, and none would be common."""
    training = Training([(0.5, 0.0)] * 7 + [(0.5, 0.6)])
    for number in range(1, CALLS):
        training.call(number)
    assert len(training.common) > CALLS / 4
    assert all(later - sooner <= 8 for sooner, later in itertools.pairwise(training.common))


@settings(max_examples=40)
@given(DELAYS)
def test_saves_are_common_again_and_again(delays: list[tuple[float, float]]) -> None:
    """Whatever ranks' saves take, and whenever they hear: never long without a save that all have."""
    training = Training(delays)
    for number in range(1, CALLS):
        training.call(number)
    longest = max(later - sooner for sooner, later in itertools.pairwise([0, *training.common, CALLS]))
    assert longest <= 48, training.common


@settings(max_examples=40)
@given(DELAYS, st.integers(2, 30))
def test_saves_are_as_far_apart_as_a_rank_wants(delays: list[tuple[float, float]], distance: int) -> None:
    """Never nearer; and where ranks know an outcome before the next save is due, never further than they must be."""
    training = Training(delays, distance)
    for number in range(1, CALLS):
        training.call(number)
    apart = [later - sooner for sooner, later in itertools.pairwise(training.common)]
    assert min(apart) >= distance
    if distance > sum(map(max, zip(*delays, strict=True))) + 1:
        assert max(apart) <= 2 * distance


@settings(max_examples=40)
@given(DELAYS, st.integers(2, 30), st.integers(60, 100))
def test_ranks_that_are_held_save_at_the_boundary_however_far_saves_are(
    delays: list[tuple[float, float]], distance: int, at: int
) -> None:
    """All hear of it before: that step is saved, whenever the next one would be due."""
    training = Training(delays, distance)
    every = tuple(range(len(delays)))
    for number in range(1, at):
        training.call(number)
    training.wait()
    training.call(at, forced=every)
    training.wait()
    assert training.common[-1] == at


@settings(max_examples=40)
@given(DELAYS, st.integers(0, 1 << 32))
def test_ranks_that_must_save_alone_do_not_put_the_votes_out_of_step_for_good(
    delays: list[tuple[float, float]], seed: int
) -> None:
    """The order to stop reaches some ranks a call earlier than others: afterwards all vote on the same calls again."""
    training, chance = Training(delays), random.Random(seed)
    ranks = range(len(delays))
    for number in range(1, 80):
        forced = tuple(rank for rank in ranks if chance.random() < 0.3) if chance.random() < 0.3 else ()
        training.call(number, forced)
    for number in range(80, CALLS):
        training.call(number)
    assert len([at for at in training.common if at > 160]) >= 2, training.common


@settings(max_examples=40)
@given(DELAYS)
def test_ranks_that_must_save_together_do(delays: list[tuple[float, float]]) -> None:
    """All are held at the next boundaries, until one is saved by all."""
    training = Training(delays)
    for number in range(1, 50):
        training.call(number, forced=(0,) if number == 49 else ())
    every = tuple(range(len(delays)))
    for number in range(50, 120):
        if number % 10 == 0:
            training.wait()
        training.call(number, forced=every if number % 10 == 0 else ())
    training.wait()
    assert [at for at in training.common if at % 10 == 0][-6:] == [60, 70, 80, 90, 100, 110]


def test_a_call_that_was_due_and_had_no_outcome_is_made_up_for() -> None:
    """Such as the first one, when no plan could be made."""
    due = DueCalls()
    assert due.decide(2, 2, forced=True)
    due.take(2, Result(common=True, calls=2, call=2))
    assert not due.unknown
    assert due.decide(3, 3)
    assert due.unknown
    assert not due.decide(4, 4)
