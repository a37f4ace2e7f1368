"""Hang detection for a job without a Session, such as a plain script of torchrun. Missing steps are no evidence there.

Three conditions must hold together: no rank writes to its log, none works, and all stacks are unchanged. A process that
stays stopped is evidence by itself, as in every job.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.policies.config.policy import HangPolicy
from holdfast.policies.detect.hang_facts import HangFacts, Learned


def is_plain(ranks: Sequence[HangFacts], learned: Learned) -> bool:
    """Return whether no rank has reported anything, now or at an earlier start."""
    return not (learned.reports or learned.start_s) and not any(
        rank.reports or rank.steps_done for rank in ranks
    )


def silent_s(ranks: Sequence[HangFacts]) -> float:
    """Return the seconds since any rank wrote to its log, or was started; 0: not known."""
    return min((min(rank.log_silent_s or 0.0, rank.silent_s) for rank in ranks), default=0.0)


def limit_s(ranks: Sequence[HangFacts], policy: HangPolicy) -> float:
    """Return the silence of logs that is allowed, in seconds."""
    stopped = any(rank.stopped_s >= policy.stopped_s for rank in ranks)
    return policy.max_window_s if stopped else policy.plain_silent_s


def hangs(signals: Sequence[str], stopped: bool) -> bool:
    """Return whether the signals of the vote are enough.

    Args:
        signals: those that fired.
        stopped: a process stays stopped.
    """
    needed = {"silent", "stuck"} if stopped else {"silent", "stuck", "idle"}
    return needed <= set(signals)
