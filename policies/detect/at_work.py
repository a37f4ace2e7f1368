"""Ranks of a silent job that visibly work, and for how long they may: an undeclared pause that is no hang."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.base import Frozen
from holdfast.policies.config.policy import HangPolicy
from holdfast.policies.detect.hang_facts import HangFacts, Learned

_COMPUTES = 0.5
"""A machine's GPUs compute when they are so busy."""


class RanksAtWork(Frozen):
    """Ranks that work."""

    ranks: tuple[int, ...] = ()
    limit_s: float
    """Seconds that they may work without a step ..."""
    longest_s: float
    """... and after this no rank may, whatever the signs."""


def find(ranks: Sequence[HangFacts], limit_s: float, policy: HangPolicy, learned: Learned) -> RanksAtWork:
    """Find the ranks that work before their first step, else in a pause between steps.

    Args:
        ranks: those that have not ended.
        limit_s: silence that is allowed also to ranks that do nothing.
        policy: thresholds.
        learned: how long the job took before.
    """
    still = all(rank.stacks_unchanged for rank in ranks)
    if any(rank.steps_done == 0 for rank in ranks):
        longest_s = max(limit_s, policy.start_working_s, policy.start_factor * learned.start_s)
        lost = any((rank.blocked_s or 0.0) > limit_s for rank in ranks)
        found = [rank.rank for rank in ranks if not lost and _prepares(rank, still, policy)]
        return RanksAtWork(ranks=tuple(sorted(found)), limit_s=longest_s, longest_s=longest_s)
    lost = any((rank.blocked_s or 0.0) >= policy.blocked_s for rank in ranks)
    found = [rank.rank for rank in ranks if not lost and _computes(rank, still, policy)]
    return RanksAtWork(
        ranks=tuple(sorted(found)), limit_s=max(limit_s, policy.undeclared_s), longest_s=policy.endless_s
    )


def _prepares(rank: HangFacts, still: bool, policy: HangPolicy) -> bool:
    """Return whether it tokenises, compiles or downloads. If no stack changes, ranks may also spin in a collective."""
    if rank.steps_done:
        return False
    if rank.children_cores >= policy.idle_cores or rank.io_bytes_s >= policy.start_bytes_s:
        return True
    return not still and rank.cpu_cores >= policy.idle_cores


def _computes(rank: HangFacts, still: bool, policy: HangPolicy) -> bool:
    """Return whether it may evaluate: its GPUs are busy, or its processors with changing stacks, or its children's.

    A rank that waits for a child, a loader's worker that loads torch or an evaluation, has the same stack all the time.
    """
    if rank.children_cores >= policy.idle_cores:
        return True
    if still:
        return False
    # Where SM activity is known: a kernel that waits for a peer keeps a GPU busy as well.
    waits = rank.sm_active is not None and rank.sm_active < policy.spinning_sm_share
    if rank.gpu_busy is not None and rank.gpu_busy >= _COMPUTES and not waits:
        return True
    return rank.stacks_change and rank.cpu_cores >= policy.idle_cores
