"""How many standbys to keep: enough for all but one day in a hundred (BR section 6).

The number of machines that fail in a day is Binomial(machines, daily failure rate per machine); the pool
holds its 99th percentile.
"""

from __future__ import annotations

from scipy.stats import binom

from holdfast.errors import RefusedError


def size(
    machines: int, daily_rate: float, percentile: float = 0.99, minimum: int = 0, maximum: int | None = None
) -> int:
    """Standbys for ``machines`` active ones.

    Args:
        machines: machines that run jobs.
        daily_rate: probability that a machine fails within a day.
        percentile: share of days on which the pool must be enough.
        minimum: never fewer.
        maximum: never more; None: no limit.

    Raises:
        RefusedError: a figure is outside its range.
    """
    if machines < 0 or not 0 <= daily_rate <= 1 or not 0 < percentile < 1:
        raise RefusedError(
            f"standby pool: machines = {machines}, daily_rate = {daily_rate}, percentile = {percentile}; expected "
            "machines >= 0, 0 <= daily_rate <= 1, 0 < percentile < 1"
        )
    if minimum < 0 or (maximum is not None and maximum < minimum):
        raise RefusedError(
            f"standby pool: minimum = {minimum}, maximum = {maximum}; expected 0 <= minimum <= maximum. "
            "Change spare_pool in the policy file."
        )
    computed = max(int(binom.ppf(percentile, machines, daily_rate)), minimum)
    return computed if maximum is None else min(computed, maximum)


def estimate_rate(
    failures: int, machine_days: float, prior_failures: float = 0.5, prior_machine_days: float = 417.0
) -> float:
    """Failures per machine and day, from history and a prior; at most 1.

    The posterior mean under a Gamma prior: (failures + a) / (machine_days + b). The shape a = 0.5 is that of
    Jeffreys' prior for a rate; b = 417 machine-days puts the prior mean at 0.0012, the rate for which the
    sizing rule gives BR table 5. So no history gives a sane rate, not zero, and a few hundred machine-days
    outweigh the prior.

    Raises:
        RefusedError: a figure is negative, or the prior is empty.
    """
    if failures < 0 or machine_days < 0 or prior_failures <= 0 or prior_machine_days <= 0:
        raise RefusedError(
            f"failure rate: failures = {failures}, machine_days = {machine_days}, prior_failures = "
            f"{prior_failures}, prior_machine_days = {prior_machine_days}; expected history >= 0 and prior > 0"
        )
    return min(1.0, (failures + prior_failures) / (machine_days + prior_machine_days))
