"""Jumps of loss and gradient norm."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.jumps import jump

LIMITS = Policy.load().detect.metrics
STEADY = [2.0 + 0.1 * (step % 3) for step in range(64)]


def test_five_times_the_median_is_a_jump() -> None:
    """With what it was compared with."""
    found = jump(STEADY, 12.0, LIMITS)
    assert found is not None
    assert (found.value, found.median) == (12.0, 2.1)
    assert found.factor > 5


def test_less_is_none() -> None:
    """A spike of four times is everyday."""
    assert jump(STEADY, 8.4, LIMITS) is None


def test_the_first_steps_are_not_judged() -> None:
    """Too few to know what is usual."""
    assert jump(STEADY[: LIMITS.warmup - 1], 1e9, LIMITS) is None
    assert jump(STEADY[: LIMITS.warmup], 1e9, LIMITS) is not None


def test_a_metric_that_scatters_widely_needs_more() -> None:
    """Gradient norms of a small batch may well be ten times the median."""
    scattered = [0.1, 1.0, 4.0, 0.2, 3.0] * 12
    assert jump(scattered, 8.0, LIMITS) is None
    assert jump(scattered, 100.0, LIMITS) is not None


def test_a_metric_with_a_long_tail_does_not_jump_by_itself() -> None:
    """A classifier that has nearly converged, or a critic: most steps are far below the worst of every twenty."""
    draw = random.Random(1)
    losses = [0.003 * math.exp(draw.gauss(0.0, 1.3)) for _ in range(20_000)]
    found = high = 0
    for step, value in enumerate(losses):
        high = high + 1 if jump(losses[max(0, step - LIMITS.history) : step], value, LIMITS) else 0
        found += high == LIMITS.jump_steps
    assert found == 0


def test_a_lasting_jump_is_found_while_its_own_steps_are_in_the_history() -> None:
    """They must not hide it before it has lasted long enough."""
    for before in (LIMITS.warmup, LIMITS.history):
        values = [*STEADY[:before]]
        for _ in range(LIMITS.jump_steps):
            assert jump(values[-LIMITS.history :], 16.0, LIMITS) is not None
            values.append(16.0)


def test_values_near_zero_are_noise() -> None:
    """A loss of 1e-9 that becomes 1e-5 has not jumped."""
    assert jump([1e-9] * 64, 1e-5, LIMITS) is None


@given(st.lists(st.floats(0.5, 2.0), min_size=20, max_size=64), st.floats(0, 2.4))
def test_nothing_within_the_usual_range_is_a_jump(history: list[float], value: float) -> None:
    """Whatever the order of the steps."""
    assert jump(history, value, LIMITS) is None


@given(
    st.lists(st.floats(1e-3, 1e6), min_size=20, max_size=64),
    st.floats(1e-3, 1e9),
    st.floats(1e-3, 1e9),
)
def test_more_is_never_less_of_a_jump(history: list[float], value: float, more: float) -> None:
    """If a value is a jump, every larger one is."""
    if jump(history, value, LIMITS) is not None:
        assert jump(history, value + more, LIMITS) is not None


@given(st.lists(st.floats(0, 1e6), max_size=64), st.floats(0, 1e12), st.randoms())
def test_the_order_of_the_history_does_not_matter(history: list[float], value: float, random: object) -> None:
    """It is a set of numbers."""
    shuffled = list(history)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = jump(history, value, LIMITS), jump(shuffled, value, LIMITS)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert math.isclose(first.factor, second.factor)
