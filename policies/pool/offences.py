"""Offences of a machine: remembered across jobs, and forgiven with time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.models.history import Offence


def weigh(offences: Iterable[Offence], now: float, half_life_s: float) -> Mapping[str, float]:
    """Return the weight of each machine's offences: every offence counts 1 at first, half after ``half_life_s``.

    Offences of the future (another host's clock) count 1.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    for offence in offences:
        weights[offence.machine] += 0.5 ** (max(0.0, now - offence.at) / half_life_s)
    return dict(weights)


def offenders(weights: Mapping[str, float], threshold: float) -> frozenset[str]:
    """Return the machines that weigh at least ``threshold``."""
    return frozenset(machine for machine, weight in weights.items() if weight >= threshold)
