"""Two signs of the odd machine in a hang (Baige): GPUs that do nothing among busy ones, and a log that ended first."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.policies.config.policy import HangPolicy
from holdfast.policies.detect.hang_facts import HangFacts

_IDLE = 0.05


def gpus_idle(ranks: Sequence[HangFacts], policy: HangPolicy) -> list[int]:
    """Return ranks of machines whose GPUs do nothing while those of all others spin in a collective."""
    if any(rank.gpu_busy is None for rank in ranks):
        return []
    idle = [rank.rank for rank in ranks if (rank.gpu_busy or 0.0) <= _IDLE]
    spin = sum((rank.gpu_busy or 0.0) >= policy.spinning_gpu_share for rank in ranks)
    return idle if idle and len(idle) + spin == len(ranks) else []


def log_ended(ranks: Sequence[HangFacts], policy: HangPolicy) -> list[int]:
    """Return the one rank whose log ended long before the others', which all ended at the same moment."""
    if len(ranks) < 3 or any(rank.log_silent_s is None for rank in ranks):
        return []
    first, *others = sorted(ranks, key=lambda rank: -(rank.log_silent_s or 0.0))
    silences = [rank.log_silent_s or 0.0 for rank in others]
    apart_s = policy.collective_open_s
    together = silences[0] - silences[-1] < apart_s
    return [first.rank] if together and (first.log_silent_s or 0.0) - silences[0] >= apart_s else []
