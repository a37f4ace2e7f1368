"""Repeat offenders among the machines, from the ledger's record of their offences."""

from __future__ import annotations

from holdfast.policies.config.ladders import LadderPolicy
from holdfast.policies.pool import offences
from holdfast.storage.ledger import Ledger

_HALF_LIVES = 10
"""An older offence weighs less than a thousandth."""


def find(ledger: Ledger, now: float, policy: LadderPolicy) -> frozenset[str]:
    """Return the machines that had so many offences lately that they are evicted at their next fault."""
    past = ledger.offences(since=now - _HALF_LIVES * policy.offence_half_life_s)
    return frozenset(
        offences.offenders(offences.weigh(past, now, policy.offence_half_life_s), policy.offender)
    )
