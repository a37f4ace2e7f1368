"""Detection of a job that has become slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.config.policy import Policy
from holdfast.policies.detect import throughput

LIMITS = Policy.load().detect.throughput
USUAL = [1.0 + 0.02 * (step % 5) for step in range(256)]


def test_steps_that_take_half_as_long_again() -> None:
    """Named with the factor."""
    found = throughput.slower(USUAL, [1.6] * LIMITS.recent, LIMITS)
    assert found is not None
    assert found.factor > 1.5


def test_single_slow_steps_are_no_decline() -> None:
    """Checkpoints and evaluations lie between the steps."""
    recent = [1.0] * (LIMITS.recent - 4) + [30.0] * 4
    assert throughput.slower(USUAL, recent, LIMITS) is None


def test_a_little_slower_is_none() -> None:
    """Within the limit."""
    assert throughput.slower(USUAL, [1.2] * LIMITS.recent, LIMITS) is None


def test_a_job_that_always_scatters_needs_more() -> None:
    """Its usual variation is no decline."""
    scattered = [0.5, 1.0, 1.5, 2.5] * 64
    assert throughput.slower(scattered, [2.5] * LIMITS.recent, LIMITS) is None


def test_too_few_steps_are_not_judged() -> None:
    """Neither recent ones nor earlier ones."""
    assert throughput.slower(USUAL[:20], [9.0] * LIMITS.recent, LIMITS) is None
    assert throughput.slower(USUAL, [9.0] * (LIMITS.recent - 1), LIMITS) is None


def test_utilisation_that_falls() -> None:
    """As step times, but less is worse."""
    mfu = [0.4 + 0.005 * (step % 3) for step in range(256)]
    assert throughput.lower(mfu, [0.38] * LIMITS.recent, LIMITS) is None
    found = throughput.lower(mfu, [0.2] * LIMITS.recent, LIMITS)
    assert found is not None
    assert found.factor > 1.9


@given(
    st.lists(st.floats(0.5, 1.0), min_size=64, max_size=256),
    st.lists(st.floats(0.1, 1.0), min_size=16, max_size=16),
)
def test_what_is_as_fast_as_before_never_declines(baseline: list[float], recent: list[float]) -> None:
    """No step slower than the slowest of before, and none of those 1.25 x the median."""
    usual = sorted(baseline)[len(baseline) // 2]
    if max(recent) <= usual:
        assert throughput.slower(baseline, recent, LIMITS) is None
