"""Number of standbys to keep: enough for all but one replenish time in a hundred (ByteRobust section 6).

Machines that fail while a used standby is being replaced are Binomial(machines, p) in number, with p the
probability that one machine fails within that time; the pool holds its 99th percentile. A whole switch is not
covered by that: it is shown beside it (ByteRobust weights it 1 %).
"""

from __future__ import annotations

import math

import scipy  # whose part for statistics loads when it is used: a second of a processor

from holdfast.errors import RefusedError
from holdfast.models.base import Frozen
from holdfast.policies.config.pool import SparePoolPolicy
from holdfast.policies.counted import counted

HOURS_PER_DAY = 24.0


class GroupHistory(Frozen):
    """Failures and size of a group of machines in the past."""

    group: str = ""
    """Empty: all machines of the site."""
    machines: int
    """Machines that run jobs, at the site's busiest of late."""
    failures: int = 0
    machine_days: float = 0.0


class PoolCost(Frozen):
    """Cost and saving of a pool of ``size``, in machine-hours per day."""

    size: int
    coverage: float
    """Share of replenish times in which it is enough."""
    idle: float
    """Machine-hours for which standbys wait."""
    saved: float
    """Machine-hours for which the job's machines do not wait, compared with no standby at all."""

    @property
    def net(self) -> float:
        """The saving less the cost."""
        return self.saved - self.idle


class Catastrophe(Frozen):
    """Failure of a whole switch at once."""

    machines: int
    """Number of machines that it takes along."""
    weight: float
    short: int
    """Number of these that the pool cannot replace: only they are rescheduled."""
    seconds: float
    """Seconds until the job can start again."""


class PoolPlan(Frozen):
    """The pool of one group, and the reasoning."""

    group: str
    machines: int
    failures: int
    machine_days: float
    rate: float
    """Failures per machine and day."""
    rate_low: float
    rate_high: float
    """The rate lies between these with 90 % probability."""
    percentile: float
    replenish_h: float
    computed: int
    """The percentile itself."""
    target: int
    """The size within minimum and maximum, and with hysteresis."""
    coverage: float
    """Share of replenish times in which ``target`` is enough."""
    catastrophe: Catastrophe
    costs: tuple[PoolCost, ...]
    """Costs by size, from none to a little more than the target."""
    cheapest: int
    """The size whose net saving is greatest."""
    reasons: tuple[str, ...]


def size(
    machines: int,
    daily_rate: float,
    percentile: float = 0.99,
    minimum: int = 0,
    maximum: int | None = None,
    *,
    replenish_h: float = HOURS_PER_DAY,
) -> int:
    """Compute the number of standbys for ``machines`` active ones.

    Args:
        machines: machines that run jobs.
        daily_rate: failures per machine and day.
        percentile: share of replenish times in which the pool must be enough.
        minimum: never fewer.
        maximum: never more; None: no limit.
        replenish_h: hours until a used standby is replaced.

    Raises:
        RefusedError: a figure is outside its range.
    """
    if machines < 0 or daily_rate < 0 or not 0 < percentile < 1 or replenish_h <= 0:
        raise RefusedError(
            f"standby pool: machines = {machines}, daily_rate = {daily_rate}, percentile = {percentile}, "
            f"replenish_h = {replenish_h}; expected machines >= 0, daily_rate >= 0, 0 < percentile < 1, "
            "replenish_h > 0"
        )
    if minimum < 0 or (maximum is not None and maximum < minimum):
        raise RefusedError(
            f"standby pool: minimum = {minimum}, maximum = {maximum}; expected 0 <= minimum <= maximum. "
            "Change spare_pool in the policy file."
        )
    computed = max(
        int(scipy.stats.binom.ppf(percentile, machines, probability(daily_rate, replenish_h))), minimum
    )
    return computed if maximum is None else min(computed, maximum)


def probability(daily_rate: float, hours: float) -> float:
    """Return the probability that a machine with ``daily_rate`` failures a day fails within ``hours``."""
    return -math.expm1(-daily_rate * hours / HOURS_PER_DAY)


def coverage(pool: int, machines: int, daily_rate: float, replenish_h: float = HOURS_PER_DAY) -> float:
    """Return the share of replenish times in which at most ``pool`` of ``machines`` fail."""
    return float(scipy.stats.binom.cdf(pool, machines, probability(daily_rate, replenish_h)))


def estimate_rate(
    failures: int, machine_days: float, prior_rate: float = 0.0012, prior_machine_days: float = 417.0
) -> float:
    """Estimate the failures per machine and day, from history and a prior; at most 1.

    The posterior mean under a Gamma prior with mean ``prior_rate`` and the weight of ``prior_machine_days`` of
    history. The default mean, 0.0012, is the rate for which the sizing gives ByteRobust table 5; the default weight
    makes the shape 0.5, that of Jeffreys' prior for a rate. So no history gives a sane rate, not zero, and a few
    hundred machine-days outweigh the prior.

    Raises:
        RefusedError: a figure is negative, or the prior is empty.
    """
    shape, days = _posterior(failures, machine_days, prior_rate, prior_machine_days)
    return min(1.0, shape / days)


def rate_interval(
    failures: int, machine_days: float, prior_rate: float = 0.0012, prior_machine_days: float = 417.0
) -> tuple[float, float]:
    """Return the 90 % interval of the rate; arguments and errors of :func:`estimate_rate`."""
    shape, days = _posterior(failures, machine_days, prior_rate, prior_machine_days)
    low, high = scipy.stats.gamma.ppf([0.05, 0.95], shape, scale=1 / days)
    return min(1.0, float(low)), min(1.0, float(high))


def plan(
    history: GroupHistory, policy: SparePoolPolicy, current: int | None = None, rate: float | None = None
) -> PoolPlan:
    """Size the pool of one group.

    Args:
        history: of the group's machines.
        policy: of the group.
        current: its target until now; None: there is none yet.
        rate: failures per machine and day; None: estimated from the history.

    Raises:
        RefusedError: a figure is outside its range.
    """
    prior = (policy.prior_rate, policy.prior_machine_days)
    known = estimate_rate(history.failures, history.machine_days, *prior) if rate is None else rate
    low, high = (
        rate_interval(history.failures, history.machine_days, *prior) if rate is None else (rate, rate)
    )
    n, hours = history.machines, policy.replenish_h
    computed = size(n, known, policy.percentile, replenish_h=hours)
    target, why = _held(n, known, computed, policy, current)
    catastrophe = _catastrophe(n, target, policy)
    costs = _costs(max(computed, target) + 2, n, known, policy)
    return PoolPlan(
        group=history.group,
        machines=n,
        failures=history.failures,
        machine_days=history.machine_days,
        rate=known,
        rate_low=low,
        rate_high=high,
        percentile=policy.percentile,
        replenish_h=hours,
        computed=computed,
        target=target,
        coverage=coverage(target, n, known, hours),
        catastrophe=catastrophe,
        costs=costs,
        cheapest=max(costs, key=lambda cost: (round(cost.net, 9), -cost.size)).size,
        reasons=(_rate_reason(history, known, (low, high), policy, given=rate is not None), *why),
    )


def _posterior(
    failures: int, machine_days: float, prior_rate: float, prior_days: float
) -> tuple[float, float]:
    if failures < 0 or machine_days < 0 or prior_rate <= 0 or prior_days <= 0:
        raise RefusedError(
            f"failure rate: failures = {failures}, machine_days = {machine_days}, prior_rate = {prior_rate}, "
            f"prior_machine_days = {prior_days}; expected history >= 0 and prior > 0"
        )
    return failures + prior_rate * prior_days, machine_days + prior_days


def _held(
    n: int, rate: float, computed: int, policy: SparePoolPolicy, current: int | None
) -> tuple[int, list[str]]:
    """Return the target: the computed size between its limits; shrunk only when a higher rate would allow it too."""
    wanted = min(max(computed, policy.minimum), policy.maximum)
    share = f"{policy.percentile:.4g}"
    reasons = [
        f"{share} of replenish times of {policy.replenish_h:g} h see at most {computed} of {n} machines fail"
    ]
    if wanted != computed:
        reasons.append(f"held within {policy.minimum} and {policy.maximum}: {wanted}")
    if current is None or wanted >= current:
        return wanted, reasons
    careful = size(
        n,
        rate * (1 + policy.shrink_margin),
        policy.percentile,
        policy.minimum,
        policy.maximum,
        replenish_h=policy.replenish_h,
    )
    kept = min(current, max(wanted, careful), policy.maximum)
    margin = f"a rate {policy.shrink_margin:.0%} higher"
    if kept == wanted:
        reasons.append(f"shrunk from {current}: {margin} needs no more than {wanted} either")
    else:
        reasons.append(f"{kept} kept of {current}: {margin} would need {careful}")
    return kept, reasons


def _catastrophe(n: int, target: int, policy: SparePoolPolicy) -> Catastrophe:
    hit = min(n, policy.switch_machines)
    short = max(0, hit - target)
    return Catastrophe(
        machines=hit,
        weight=policy.switch_weight,
        short=short,
        seconds=policy.reschedule_s if short else policy.swap_s,
    )


def _costs(most: int, n: int, rate: float, policy: SparePoolPolicy) -> tuple[PoolCost, ...]:
    enough = scipy.stats.binom.cdf(range(most + 1), n, probability(rate, policy.replenish_h))
    spared_h = n * max(0.0, policy.reschedule_s - policy.swap_s) / 3600
    costs, served = [], 0.0
    for k, covered in enumerate(map(float, enough)):
        per_day = served * HOURS_PER_DAY / policy.replenish_h
        costs.append(PoolCost(size=k, coverage=covered, idle=k * HOURS_PER_DAY, saved=per_day * spared_h))
        # E[min(X, k)] = sum over j < k of P(X > j): failures per replenish time that find a standby.
        served += 1 - covered
    return tuple(costs)


def _rate_reason(
    history: GroupHistory, rate: float, interval: tuple[float, float], policy: SparePoolPolicy, *, given: bool
) -> str:
    if given:
        return f"{rate:.5g} failures per machine and day, as given"
    low, high = interval
    return (
        f"{counted(history.failures, 'failure', 'failures')} in {history.machine_days:.1f} machine-days: "
        f"{rate:.5f} per machine and day "
        f"({low:.5f} to {high:.5f}); prior {policy.prior_rate:g} over {policy.prior_machine_days:g} machine-days"
    )
