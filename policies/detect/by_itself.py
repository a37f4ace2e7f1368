"""Signals of GPUs and ports that are a hang by themselves, with no second one beside them.

Sources: Baige: no RDMA traffic, GPUs fully utilised and SMs nearly idle, for five seconds; ByteRobust (arXiv
2509.16293) and MegaScale (arXiv 2402.15627): no RDMA traffic for ten minutes, or tensor cores that do nothing.

Other causes of each of them are ruled out first. Evaluation, checkpoints, compilation and the first step have limits
of their own, before which nothing counts. Data that is read, or an evaluation that was not declared, shows in
processors or SMs: a rank that works is no hang. For a job that never used its ports, or no tensor cores, their idleness
is no evidence. And while no step is overdue, nothing has to be explained.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.policies.config.policy import HangPolicy
from holdfast.policies.detect.hang_facts import HangFacts


def overdue(silent_s: float, ranks: Sequence[HangFacts], policy: HangPolicy) -> bool:
    """Return whether a step should have come by now, from how long steps and the gaps between them were."""
    return silent_s > policy.gap_factor * max(max(rank.step_s, rank.longest_gap_s) for rank in ranks)


def spins(ranks: Sequence[HangFacts], silent_s: float, policy: HangPolicy) -> bool:
    """Return whether all machines wait in a collective (Baige). Only after a step: before, the pattern is unknown."""
    return (
        all(rank.spins_s >= policy.spin_s and rank.steps_done > 0 for rank in ranks)
        and silent_s >= policy.spin_s
        and overdue(silent_s, ranks, policy)
    )


def find(ranks: Sequence[HangFacts], silent_s: float, working: bool, policy: HangPolicy) -> dict[str, str]:
    """Find signals that are a hang, with a sentence each.

    Args:
        ranks: those that have not ended; none is exempt.
        silent_s: since the last step of any, or, of a job that reports none, since something was logged.
        working: some rank visibly works.
        policy: thresholds.
    """
    found = {}
    if spins(ranks, silent_s, policy):
        found["spin"] = (
            f"all GPUs are busy, less than {policy.spinning_sm_share:.0%} of their SMs work, and no machine sends "
            f"anything, for {min(rank.spins_s for rank in ranks):.0f} s (limit {policy.spin_s:g} s)"
        )
    if working or not overdue(silent_s, ranks, policy):
        return found
    quiet_s, cold_s = min(rank.quiet_s for rank in ranks), min(rank.cold_s for rank in ranks)
    if min(quiet_s, silent_s) >= policy.quiet_s:
        found["quiet"] = f"no machine has sent anything for {quiet_s:.0f} s (limit {policy.quiet_s:g} s)"
    if min(cold_s, silent_s) >= policy.cold_s:
        found["cold"] = f"no tensor core has worked for {cold_s:.0f} s (limit {policy.cold_s:g} s)"
    return found
