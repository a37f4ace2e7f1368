"""Binomial sizing of the standby pool."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RefusedError
from holdfast.policies.policy import Policy
from holdfast.policies.spare_pool import estimate_rate, size


def test_the_published_table_follows_from_the_prior_rate() -> None:
    """BR table 5: 2 / 2 / 3 / 4 standbys for 128 / 256 / 512 / 1,024 machines."""
    rate = estimate_rate(0, 0.0)
    assert rate == pytest.approx(0.0012, rel=0.01)
    assert [size(machines, rate) for machines in (128, 256, 512, 1024)] == [2, 2, 3, 4]


def test_the_rates_that_give_the_table_are_a_narrow_band() -> None:
    """0.00117 to 0.00125 failures per machine and day: outside of it some size differs."""

    def table(rate: float) -> list[int]:
        return [size(machines, rate) for machines in (128, 256, 512, 1024)]

    assert table(0.00117) == table(0.00125) == [2, 2, 3, 4]
    assert table(0.00115) != [2, 2, 3, 4]
    assert table(0.00127) != [2, 2, 3, 4]


def test_the_rates_of_other_published_clusters_need_more() -> None:
    """arXiv 2410.21680: 0.00234 and 0.0065."""
    assert [size(1024, rate) for rate in (0.00234, 0.0065)] == [7, 13]


def at_most(k: int, n: int, p: float) -> float:
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@given(st.integers(0, 200), st.floats(0, 0.2), st.sampled_from([0.9, 0.99, 0.999]))
def test_the_pool_is_the_smallest_that_covers_the_share_of_days(n: int, p: float, share: float) -> None:
    """Against the sum of the distribution."""
    k = size(n, p, share)
    assert at_most(k, n, p) >= share - 1e-9
    assert k == 0 or at_most(k - 1, n, p) < share + 1e-9


@given(st.integers(0, 500), st.floats(0, 0.1), st.floats(0, 0.1))
def test_a_higher_rate_never_needs_fewer(n: int, one: float, other: float) -> None:
    """Monotone."""
    low, high = sorted((one, other))
    assert size(n, low) <= size(n, high) <= n


def test_minimum_and_maximum_hold() -> None:
    """Small clusters keep some, large ones have a budget."""
    assert size(4, 0.0012, minimum=2, maximum=64) == 2
    assert size(10_000, 0.05, minimum=2, maximum=64) == 64


@given(st.integers(0, 1000), st.floats(0, 1e6))
def test_the_rate_is_never_zero_nor_above_one(failures: int, days: float) -> None:
    """No history is not no risk."""
    assert 0 < estimate_rate(failures, days) <= 1


def test_history_outweighs_the_prior() -> None:
    """After many machine-days the observed rate is what counts."""
    assert estimate_rate(65, 10_000) == pytest.approx(0.0065, rel=0.05)
    assert estimate_rate(0, 100_000) < 0.00001
    assert estimate_rate(10_000, 1.0) == 1.0


def test_the_packaged_policy_uses_the_documented_prior() -> None:
    """Function defaults and policy file agree."""
    policy = Policy.load().spare_pool
    assert estimate_rate(3, 50, policy.prior_failures, policy.prior_machine_days) == estimate_rate(3, 50)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-1, 0.1), "machines = -1"),
        ((4, 1.5), "daily_rate = 1.5"),
        ((4, 0.1, 1.0), "percentile = 1.0"),
        ((4, 0.1, 0.99, 5, 2), "minimum = 5, maximum = 2"),
    ],
)
def test_impossible_figures_are_refused(arguments: tuple[float, ...], named: str) -> None:
    """Names the value."""
    with pytest.raises(RefusedError, match=named):
        size(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [(-1, 0), (0, -1), (0, 0, 0.0), (0, 0, 0.5, 0.0)])
def test_impossible_histories_are_refused(arguments: tuple[float, ...]) -> None:
    """Negative history, empty prior."""
    with pytest.raises(RefusedError, match="failure rate"):
        estimate_rate(*arguments)  # type: ignore[arg-type]
