"""Closed forms that the simulator, and the published figures, are checked against."""

from __future__ import annotations

from scipy.stats import binom

from holdfast.models.base import Frozen
from holdfast.policies.pool import spare_pool

REQUEUE_S = {128: 454.0, 256: 545.0, 512: 635.0, 1024: 768.0}
"""ByteRobust section 6: requeueing, by machines of 16 GPUs."""
HOT_UPDATE_S = {128: 46.0, 256: 51.0, 512: 54.0, 1024: 65.0}
"""ByteRobust section 6: restart in place."""
PUBLISHED_REQUEUE, PUBLISHED_RESCHEDULE, PUBLISHED_ORACLE = 10.87, 5.36, 0.0519
CATASTROPHE_WEIGHT, SWITCH = 0.01, 32


class Ratios(Frozen):
    """How much faster a standby pool replaces machines, averaged over the published sizes."""

    requeue: float
    """Times faster than requeueing."""
    reschedule: float
    """Times faster than rescheduling single machines."""
    over_oracle: float
    """Slower than unlimited standbys by this share."""


def replace_s(
    machines: int, daily_rate: float, standby_s: float, reschedule_s: float, *, tail: bool = False
) -> float:
    """Mean time to replace 1..N machines, N being the pool's size, with a switch weighted 1 %.

    Args:
        machines: of the job.
        daily_rate: failures per machine and day.
        standby_s: time to replace machines from the pool.
        reschedule_s: time that the job waits for the scheduler when the pool is too small.
        tail: count days on which more than N fail as well, at their probability among days on which any fails.
    """
    p = spare_pool.probability(daily_rate, spare_pool.HOURS_PER_DAY)
    pool = spare_pool.size(machines, daily_rate)
    some = float(binom.sf(0, machines, p))
    beyond = float(binom.sf(pool, machines, p)) / some if tail and some else 0.0
    usual = (1 - beyond) * standby_s + beyond * reschedule_s
    switch = standby_s if pool >= SWITCH else reschedule_s
    return (1 - CATASTROPHE_WEIGHT) * usual + CATASTROPHE_WEIGHT * switch


def restart_ratios(
    daily_rate: float = 0.0012, reschedule_share: float | None = None, *, tail: bool = False
) -> Ratios:
    """Return the published ratios from the published inputs.

    The time of a swap is taken as that of a restart in place (a standby has everything loaded). The time to
    reschedule is not published apart from the ratios: by default it is the share of a requeue that the two
    ratios imply, 5.36 / 10.87, so of the three figures two are checked and one is an input.
    """
    share = PUBLISHED_RESCHEDULE / PUBLISHED_REQUEUE if reschedule_share is None else reschedule_share
    found = [
        (requeue, share * requeue, hot, replace_s(machines, daily_rate, hot, share * requeue, tail=tail))
        for (machines, requeue), hot in zip(REQUEUE_S.items(), HOT_UPDATE_S.values(), strict=True)
    ]
    n = len(found)
    return Ratios(
        requeue=sum(requeue / pool for requeue, _, _, pool in found) / n,
        reschedule=sum(reschedule / pool for _, reschedule, _, pool in found) / n,
        over_oracle=sum(pool / hot - 1 for _, _, hot, pool in found) / n,
    )
