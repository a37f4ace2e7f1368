"""Hang detection: a vote of four signals in one window, calibrated on the job's own steps and starts.

Source: Baidu Baige, "at least 2 of 4 signals inactive in one window", with exemptions for the first step,
evaluation and checkpointing; here also for the last ranks of a job, once others have ended. The signals here, from
what agents see without a GPU:

* ``silent``: no rank reported a step for longer than the window;
* ``stuck``: a process is stopped (state T) or waits in the kernel (D), or stacks did not change;
* ``idle``: no rank uses the processor; or GPUs are fully utilised while no port carries any traffic;
* ``waiting``: most ranks have been idle for as long as a collective may stay open.

One of them is never enough: a slow step is silent but busy (signals of GPUs and ports may be:
:mod:`holdfast.policies.detect.by_itself`). Nor are two while ranks visibly work: before the first step
(they use processors, themselves or by what they started, or read and write), or in a pause that may be an evaluation
that was not declared (their GPUs or processors compute, and their stacks change; or what they started computes). Both
have limits, after which silence alone is a hang. A job without a Session is judged in its own way
(:mod:`holdfast.policies.detect.without_session`).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.agent import RankPhase
from holdfast.models.base import Frozen
from holdfast.models.job import JobState
from holdfast.policies.config.policy import HangPolicy
from holdfast.policies.counted import counted
from holdfast.policies.detect import at_work, by_itself, odd_machine, without_session
from holdfast.policies.detect.hang_facts import NOTHING_LEARNED, HangFacts, Learned
from holdfast.policies.join_names import join_names

STUCK_STATES = frozenset("TD")
_AS_BEFORE = 1.25
"""Factor: a pause may be so much longer than the longest from which the job came back."""


class HangVote(Frozen):
    """The answer, with its evidence."""

    hang: bool
    signals: tuple[str, ...] = ()
    silent_s: float = 0.0
    """Seconds since the last step of any rank."""
    window_s: float = 0.0
    suspects: tuple[int, ...] = ()
    """Ranks that stand out: stopped, else behind the others, else with idle GPUs among busy ones, else busy among idle
    ones, else with a log that ended before all others'."""
    stopped: tuple[int, ...] = ()
    """Ranks whose process is stopped (state T): that explains the hang by itself."""
    blocked: tuple[int, ...] = ()
    """Ranks whose process waits in the kernel for longer than one that merely reads."""
    ended: tuple[int, ...] = ()
    """Ranks that ended with status 0 while these wait."""
    working: tuple[int, ...] = ()
    """Ranks that visibly work."""
    starting: bool = False
    """Whether some rank has not made its first step of the epoch."""
    steps_done: int = 0
    """Of all known ranks together, in this epoch."""
    of_ranks: int = 0
    """Number of these."""
    plain: bool = False
    """Whether the job reports no steps: ``silent_s`` is the time since a rank wrote to its log."""
    exempt: str = ""
    """Why the job is not judged now; empty when it is."""
    reasons: tuple[str, ...] = ()


def window_s(ranks: Sequence[HangFacts], policy: HangPolicy) -> float:
    """Return the longest silence that is normal for this job, in seconds."""
    usual = max((rank.step_s for rank in ranks), default=0.0)
    gap = max((rank.longest_gap_s for rank in ranks), default=0.0)
    if usual <= 0 and gap <= 0:
        return policy.max_window_s
    return _window_s(usual, gap, policy)


def _window_s(step_s: float, gap_s: float, policy: HangPolicy) -> float:
    wanted = max(policy.factor * step_s, policy.gap_factor * gap_s)
    # A pause that it made before and came back from is no hang.
    return max(
        min(max(wanted, policy.min_window_s), policy.max_window_s), min(_AS_BEFORE * gap_s, policy.endless_s)
    )


def rules_out(silent_s: float, step_s: float, longest_gap_s: float, policy: HangPolicy) -> bool:
    """Return whether one rank alone proves that its job does not hang: :func:`vote` finds no hang then.

    A job is as silent as its least silent rank, and its window is at least that of any of its ranks. So a thousand
    machines that train are judged by the first of them.

    A pause that the rank came back from before does not count here: next to a stopped process it is no excuse.

    Args:
        silent_s: of the rank, as in :class:`HangFacts`; so are the others.
        step_s: its usual step.
        longest_gap_s: its longest gap.
        policy: thresholds.
    """
    return silent_s <= min(_window_s(step_s, longest_gap_s, policy), policy.max_window_s)


def vote(
    ranks: Sequence[HangFacts],
    policy: HangPolicy,
    *,
    job_state: JobState = JobState.RUNNING,
    learned: Learned = NOTHING_LEARNED,
) -> HangVote:
    """Judge one job.

    Args:
        ranks: facts of all its ranks that are known.
        policy: thresholds.
        job_state: a job that is not running never hangs.
        learned: how long its starts and declared phases took before.
    """
    known, ranks = ranks, [rank for rank in ranks if not rank.ended]
    if off := _not_judged(ranks, job_state):
        return HangVote(hang=False, exempt=off)
    if without_session.is_plain(known, learned):
        return _vote_plain(ranks, policy)
    silent = min(rank.silent_s for rank in known)
    stopped = [rank for rank in ranks if rank.stopped_s >= policy.stopped_s]
    limit, exempt = _limit(known, policy, learned)
    # Whatever it was doing, a process that stays stopped does not go on by itself.
    if stopped and silent >= policy.stopped_s:
        usual = min(window_s(ranks, policy), policy.max_window_s)
        limit, exempt = min(limit, max(policy.stopped_s, usual)), ""
    signals = _signals(ranks, silent, limit, policy)
    ended = tuple(sorted(rank.rank for rank in known if rank.ended))
    work = at_work.find(ranks, limit, policy, learned)
    patient = bool(work.ranks) and not stopped and silent <= work.limit_s
    if silent > max(limit, work.longest_s):
        signals["endless"] = f"no step for {silent:.0f} s, however busy the ranks look"
    alone = {} if exempt and silent <= limit else by_itself.find(ranks, silent, bool(work.ranks), policy)
    voted = len(signals) >= policy.votes and "silent" in signals and not patient
    signals |= alone
    hang = voted or bool(alone)
    if patient and "silent" in signals:
        exempt = f"ranks {join_names(work.ranks)} work (limit {work.limit_s:g} s)"
    return HangVote(
        hang=hang,
        signals=tuple(signals),
        silent_s=silent,
        window_s=limit,
        suspects=_suspects(ranks, policy, ended) if hang else (),
        stopped=_stopped(ranks) if hang else (),
        blocked=_blocked(ranks, policy) if hang else (),
        ended=ended if hang else (),
        working=work.ranks,
        starting=any(rank.steps_done == 0 for rank in ranks),
        steps_done=sum(rank.steps_done for rank in known),
        of_ranks=len(known),
        exempt="" if hang else exempt,
        reasons=(*signals.values(), *_reasons_of_ended(ended, ranks)),
    )


def _vote_plain(ranks: Sequence[HangFacts], policy: HangPolicy) -> HangVote:
    """Judge a job without a Session: only observations from outside count."""
    silent, limit = without_session.silent_s(ranks), without_session.limit_s(ranks, policy)
    signals = _signals(ranks, silent, limit, policy)
    if silent > limit:
        signals["silent"] = (
            f"no rank wrote to its log for {silent:.0f} s (limit {limit:.0f} s), and none reports steps"
        )
    stopped = tuple(sorted(rank.rank for rank in ranks if rank.stopped_s >= policy.stopped_s))
    if not stopped and not all(rank.stacks_unchanged for rank in ranks):
        signals.pop("stuck", None)
    working = bool(at_work.find(ranks, limit, policy, NOTHING_LEARNED).ranks)
    alone = by_itself.find(ranks, silent, working, policy)
    hang = without_session.hangs(tuple(signals), bool(stopped)) or bool(alone)
    signals |= alone
    return HangVote(
        hang=hang,
        signals=tuple(signals),
        silent_s=silent,
        window_s=limit,
        suspects=_suspects(ranks, policy, ()) if hang else (),
        stopped=stopped if hang else (),
        blocked=_blocked(ranks, policy) if hang else (),
        plain=True,
        exempt="" if silent > limit else "it has no Session: steps are not expected",
        reasons=tuple(signals.values()),
    )


def _not_judged(ranks: Sequence[HangFacts], job_state: JobState) -> str:
    if job_state is not JobState.RUNNING:
        return f"the job is {job_state.value}"
    if not ranks:
        return "no rank is known, or all have ended"
    if any(rank.phase is RankPhase.EXITED for rank in ranks):
        return "a rank failed: that is no hang"
    if any(rank.paused for rank in ranks):
        return "ranks are held at a step boundary"
    return ""


def _limit(known: Sequence[HangFacts], policy: HangPolicy, learned: Learned) -> tuple[float, str]:
    """Return the allowed silence in seconds, and the exemption that stretches it, if any."""
    ranks = [rank for rank in known if not rank.ended]
    usual = window_s(ranks, policy)
    limits: dict[str, float] = {}
    for name in sorted({rank.activity for rank in ranks} & policy.activity_limits_s.keys()):
        limit_s = max(policy.activity_limits_s[name], policy.gap_factor * learned.phase_s.get(name, 0.0))
        limits[f"{name} (limit {limit_s:g} s)"] = limit_s
    if any(rank.steps_done == 0 for rank in ranks):
        start_s = max(policy.first_step_s, policy.start_factor * learned.start_s)
        limits[f"first step of the epoch (limit {start_s:g} s)"] = start_s
    if ended := len(known) - len(ranks):
        end_s = _end_s(ranks, ended, policy)
        limits[f"{counted(ended, 'rank has', 'ranks have')} ended (limit {end_s:g} s)"] = end_s
    if not limits:
        return usual, ""
    name = max(limits, key=lambda key: limits[key])
    return max(usual, limits[name]), name


def _end_s(ranks: Sequence[HangFacts], ended: int, policy: HangPolicy) -> float:
    """Return how long ranks may go on after ``ended`` others; less where a few have left the others waiting."""
    few = 2 * ended < len(ranks) + ended
    waiting = all(rank.cpu_cores < policy.idle_cores and not rank.activity for rank in ranks)
    return policy.early_end_s if few and waiting else policy.end_s


def _signals(ranks: Sequence[HangFacts], silent: float, limit: float, policy: HangPolicy) -> dict[str, str]:
    """Return the signals that fire, with a sentence each."""
    fired: dict[str, str] = {}
    if silent > limit:
        fired["silent"] = f"no rank completed a step for {silent:.1f} s (window {limit:.1f} s)"
    stuck = [rank for rank in ranks if _is_stuck(rank, policy)]
    if stuck:
        named = join_names(f"{rank.rank} ({rank.process_state})" for rank in stuck)
        fired["stuck"] = f"{len(stuck)} of {len(ranks)} processes do not run: rank {named}"
    elif all(rank.stacks_unchanged for rank in ranks):
        fired["stuck"] = "all stacks are unchanged"
    idle = [rank for rank in ranks if rank.cpu_cores < policy.idle_cores]
    if len(idle) == len(ranks):
        fired["idle"] = f"no rank uses the processor ({policy.idle_cores:g} of a core or more)"
    elif spinning(ranks, policy):
        fired["idle"] = "no machine sends anything while all GPUs are busy: collectives spin"
    if len(idle) >= policy.idle_most_share * len(ranks) and silent > max(policy.collective_open_s, limit):
        fired["waiting"] = f"{len(idle)} of {len(ranks)} ranks have waited for {silent:.0f} s"
    return fired


def spinning(ranks: Sequence[HangFacts], policy: HangPolicy) -> bool:
    """Return whether GPUs are fully utilised without traffic: kernels that wait for a peer look busy (Baige)."""
    return all(
        rank.gpu_busy is not None
        and rank.traffic_bytes_s is not None
        and rank.gpu_busy >= policy.spinning_gpu_share
        and rank.traffic_bytes_s < policy.spinning_bytes_s
        for rank in ranks
    )


def _stopped(ranks: Sequence[HangFacts]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in ranks if rank.process_state[:1] == "T"))


def _blocked(ranks: Sequence[HangFacts], policy: HangPolicy) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in ranks if (rank.blocked_s or 0.0) >= policy.blocked_s))


def _is_stuck(rank: HangFacts, policy: HangPolicy) -> bool:
    """Return whether it is stopped, or in the kernel for longer than a process that merely reads."""
    if rank.process_state[:1] == "D":
        return rank.blocked_s is None or rank.blocked_s >= policy.blocked_s
    return rank.process_state[:1] in STUCK_STATES


def _reasons_of_ended(ended: Sequence[int], ranks: Sequence[HangFacts]) -> list[str]:
    return (
        [f"ranks {join_names(ended)} ended with status 0, {len(ranks)} others have not come to their end"]
        if ended
        else []
    )


def _suspects(ranks: Sequence[HangFacts], policy: HangPolicy, ended: Sequence[int]) -> tuple[int, ...]:
    if stopped := _stopped(ranks):
        return stopped
    if ended:  # the others wait for these
        return ()
    ahead = max(rank.steps_done for rank in ranks)
    behind = [rank.rank for rank in ranks if rank.steps_done < ahead]
    busy = [rank.rank for rank in ranks if rank.cpu_cores >= policy.idle_cores]
    few = len(ranks) / 2
    for odd in (behind, odd_machine.gpus_idle(ranks, policy), busy, odd_machine.log_ended(ranks, policy)):
        if 0 < len(odd) < few:
            return tuple(sorted(odd))
    return ()
