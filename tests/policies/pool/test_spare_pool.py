"""Binomial sizing of the standby pool."""

from __future__ import annotations

import math
from itertools import pairwise
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RefusedError
from holdfast.policies.config.policy import Policy
from holdfast.policies.config.pool import MachineGroupPolicy, SparePoolPolicy
from holdfast.policies.pool.machine_groups import group_of, groups, split
from holdfast.policies.pool.spare_pool import (
    GroupHistory,
    coverage,
    estimate_rate,
    plan,
    probability,
    rate_interval,
    size,
)


def test_the_published_table_follows_from_the_prior_rate() -> None:
    """ByteRobust table 5: 2 / 2 / 3 / 4 standbys for 128 / 256 / 512 / 1,024 machines."""
    rate = estimate_rate(0, 0.0)
    assert rate == pytest.approx(0.0012, rel=0.01)
    assert [size(machines, rate) for machines in (128, 256, 512, 1024)] == [2, 2, 3, 4]


def test_the_rates_that_give_the_table_are_a_narrow_band() -> None:
    """0.00117 to 0.00125 failures per machine and day: outside of it some size differs."""

    def table(rate: float) -> list[int]:
        return [size(machines, rate) for machines in (128, 256, 512, 1024)]

    assert table(0.00117) == table(0.0012) == table(0.00125) == [2, 2, 3, 4]
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
    k = size(n, -math.log1p(-p), share)
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
    assert estimate_rate(3, 50, policy.prior_rate, policy.prior_machine_days) == estimate_rate(3, 50)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-1, 0.1), "machines = -1"),
        ((4, -0.5), "daily_rate = -0.5"),
        ((4, 0.1, 1.0), "percentile = 1.0"),
        ((4, 0.1, 0.99, 5, 2), "minimum = 5, maximum = 2"),
    ],
)
def test_impossible_figures_are_refused(arguments: tuple[float, ...], named: str) -> None:
    """Names the value."""
    with pytest.raises(RefusedError, match=named):
        size(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [(-1, 0), (0, -1), (0, 0, 0.0), (0, 0, 0.0012, 0.0)])
def test_impossible_histories_are_refused(arguments: tuple[float, ...]) -> None:
    """Negative history, empty prior."""
    with pytest.raises(RefusedError, match="failure rate"):
        estimate_rate(*arguments)  # type: ignore[arg-type]


def policy_with(**changes: Any) -> SparePoolPolicy:
    return Policy.load().spare_pool.model_copy(update={"minimum": 0, **changes})


def test_a_longer_replenish_time_needs_more() -> None:
    """While a standby is away for a week, more machines fail than in a day."""
    day, week = size(1024, 0.0012), size(1024, 0.0012, replenish_h=168)
    assert (day, week) == (4, 16)
    assert probability(0.0012, 24) == pytest.approx(0.0012, rel=1e-3)
    assert probability(100.0, 24) == pytest.approx(1.0)
    assert coverage(4, 1024, 0.0012) >= 0.99 > coverage(3, 1024, 0.0012)


def test_the_interval_narrows_with_history() -> None:
    """It holds the estimate, and a young site's is wide."""
    young, old = rate_interval(0, 0.0), rate_interval(120, 100_000.0)
    assert young[0] < estimate_rate(0, 0) < young[1]
    assert old[0] < estimate_rate(120, 100_000.0) < old[1]
    assert young[1] / young[0] > 100
    assert old[1] / old[0] < 2


def test_the_plan_has_size_catastrophe_and_cost() -> None:
    """1,024 machines at the prior rate: ByteRobust's four, a switch beside it, and what four standbys bring."""
    found = plan(GroupHistory(machines=1024), policy_with())
    assert (found.computed, found.target) == (4, 4)
    assert found.coverage >= 0.99
    assert (found.catastrophe.machines, found.catastrophe.short) == (32, 28)
    assert found.catastrophe.seconds == policy_with().reschedule_s
    four = found.costs[4]
    assert four.idle == 96
    assert 0 < found.cheapest <= 4
    assert found.costs[found.cheapest].net == max(cost.net for cost in found.costs)
    assert four.saved == pytest.approx(1024 * 0.0012 * 1024 * (379 - 65) / 3600, rel=0.01)
    assert any("0 failures in 0.0 machine-days" in reason for reason in found.reasons)
    assert plan(GroupHistory(machines=1024), policy_with(maximum=3)).target == 3


def test_the_pool_grows_at_once_and_shrinks_late() -> None:
    """A size that a slightly higher rate would ask for is kept; between them nothing swings."""
    n, policy = 1024, policy_with()

    def at(rate: float, current: int | None) -> int:
        return plan(GroupHistory(machines=n), policy, current, rate).target

    assert at(0.00127, 4) == 5
    assert at(0.00125, 5) == 5  # the percentile is 4, but a rate 20 % higher needs 5
    assert at(0.0009, 5) == 4
    assert at(0.0009, None) == size(n, 0.0009)


@given(st.integers(0, 3000), st.floats(0, 0.05), st.integers(0, 40), st.integers(0, 10), st.integers(10, 64))
def test_the_target_stays_within_its_limits_and_is_stable(
    n: int, rate: float, current: int, minimum: int, maximum: int
) -> None:
    """Whatever the rate; and asked again with its own answer it does not change it."""
    policy = policy_with(minimum=minimum, maximum=maximum)
    found = plan(GroupHistory(machines=n), policy, current, rate)
    assert minimum <= found.target <= maximum
    assert found.target >= min(max(found.computed, minimum), maximum)
    assert plan(GroupHistory(machines=n), policy, found.target, rate).target == found.target


@given(st.integers(1, 2000), st.floats(1e-5, 0.01))
def test_every_standby_more_saves_less_than_the_one_before(n: int, rate: float) -> None:
    """Savings are concave, coverage grows, idle time is linear."""
    costs = plan(GroupHistory(machines=n), policy_with(), rate=rate).costs
    gains = [b.saved - a.saved for a, b in pairwise(costs)]
    assert all(b <= a + 1e-6 for a, b in pairwise(gains))
    assert [cost.coverage for cost in costs] == sorted(cost.coverage for cost in costs)
    assert [cost.idle for cost in costs] == [24 * cost.size for cost in costs]


def test_machines_are_grouped_by_name() -> None:
    """The first pattern that fits; what fits none is a group of its own. Limits of a group replace the pool's."""
    policy = policy_with(
        groups={
            "h": MachineGroupPolicy(machines="gpu-h-*", maximum=3, prior_rate=0.01),
            "any": MachineGroupPolicy(machines="gpu-*"),
        }
    )
    assert [group_of(name, policy) for name in ("gpu-h-1", "gpu-a-1", "m1")] == ["h", "any", ""]
    h, other, rest = groups(policy)
    assert (h.name, h.policy.maximum, h.policy.prior_rate, h.policy.minimum) == ("h", 3, 0.01, policy.minimum)
    assert other.policy.maximum == rest.policy.maximum == policy.maximum
    few, many, _ = groups(
        policy_with(
            minimum=2,
            maximum=4,
            groups={
                "few": MachineGroupPolicy(machines="f*", maximum=1),
                "many": MachineGroupPolicy(machines="m*", minimum=6),
            },
        )
    )
    assert (few.policy.minimum, few.policy.maximum) == (1, 1)
    assert (many.policy.minimum, many.policy.maximum) == (6, 6)
    with pytest.raises(ValueError, match="minimum 5 is more than maximum 3"):
        MachineGroupPolicy(machines="f*", minimum=5, maximum=3)
    assert split({"gpu-h-1": 2.0, "gpu-h-2": 1.0, "m1": 4.0}, policy) == {"h": 3.0, "any": 0.0, "": 4.0}
    assert split(["gpu-h-1", "gpu-x"], policy) == {"h": 1.0, "any": 1.0, "": 0.0}
