"""Is the job hanging? A vote of four signals in one window, calibrated on the job's own steps.

Source: BG (Baidu Baige), "at least 2 of 4 signals inactive in one window", with exemptions for the first step,
evaluation and checkpointing; here also for the last ranks of a job, once others have ended. The signals here, from
what agents see without a GPU:

* ``silent``: no rank reported a step for longer than the window;
* ``stuck``: a process is stopped (state T) or waits in the kernel (D), or stacks did not change;
* ``idle``: no rank uses the processor; or GPUs are fully utilised while no port carries any traffic;
* ``waiting``: most ranks have been idle for as long as a collective may stay open.

One signal is never enough: a slow step is silent but busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.agent import RankPhase, RankState, Vitals
from holdfast.models.base import Frozen
from holdfast.models.job import JobState
from holdfast.policies.listed import listed
from holdfast.policies.policy import HangPolicy

STUCK_STATES = frozenset("TD")


class HangFacts(Frozen):
    """One rank over the recent past, as the caller's history has it. Times in seconds."""

    rank: int
    machine: str
    silent_s: float
    """Since its last completed step, or since its start before the first."""
    cpu_cores: float
    """Processor seconds used per second over the last few heartbeats."""
    process_state: str = ""
    activity: str = ""
    steps_done: int = 0
    """In this epoch."""
    step_s: float = 0.0
    """Usual duration of a step (mean, or better a high percentile); 0: unknown."""
    longest_gap_s: float = 0.0
    """Longest gap between two steps of this epoch outside exempt activities and holds; 0: unknown."""
    stopped_s: float = 0.0
    """For how long it has been seen in state T without interruption."""
    stacks_unchanged: bool = False
    """Several stack samples over the window were equal."""
    gpu_busy: float | None = None
    """Utilisation of its machine's GPUs, 0 to 1."""
    traffic_bytes_s: float | None = None
    """Of its machine's ports."""
    paused: bool = False
    phase: RankPhase = RankPhase.RUNNING
    exit_code: int | None = None
    """Once it has exited."""

    @property
    def ended(self) -> bool:
        """It did all that it had to do."""
        return self.phase is RankPhase.EXITED and self.exit_code == 0


class HangVote(Frozen):
    """The answer, with what it rests on."""

    hang: bool
    signals: tuple[str, ...] = ()
    silent_s: float = 0.0
    """Since the last step of any rank."""
    window_s: float = 0.0
    suspects: tuple[int, ...] = ()
    """Ranks that stand out: stopped, else behind the others, else busy among idle ones."""
    stopped: tuple[int, ...] = ()
    """Ranks whose process is stopped (state T): that explains the hang by itself."""
    exempt: str = ""
    """Why the job is not judged now; empty when it is."""
    reasons: tuple[str, ...] = ()


def facts(
    machine: str,
    state: RankState,
    now: float,
    *,
    earlier: tuple[float, float] | None = None,
    longest_gap_s: float = 0.0,
    stopped_since: float | None = None,
    stacks_unchanged: bool = False,
    vitals: Vitals | None = None,
) -> HangFacts:
    """Facts from a rank's newest state.

    Args:
        machine: where it runs.
        state: from the newest heartbeat.
        now: when that heartbeat was made, on the agent's own clock (Unix seconds).
        earlier: (time, ``cpu_s``) of a heartbeat a few seconds before; None counts as busy.
        longest_gap_s: see :class:`HangFacts`.
        stopped_since: time of the first heartbeat of the present run in state T.
        stacks_unchanged: see :class:`HangFacts`.
        vitals: of its machine.
    """
    cores = 1.0
    if earlier is not None and now > earlier[0]:
        cores = max(0.0, state.cpu_s - earlier[1]) / (now - earlier[0])
    return HangFacts(
        rank=state.rank,
        machine=machine,
        silent_s=max(0.0, now - state.step_at),
        cpu_cores=cores,
        process_state=state.process_state,
        activity=state.activity,
        steps_done=state.steps_done,
        step_s=state.step_s,
        longest_gap_s=longest_gap_s,
        stopped_s=0.0 if stopped_since is None else max(0.0, now - stopped_since),
        stacks_unchanged=stacks_unchanged,
        gpu_busy=vitals.gpu_busy if vitals else None,
        traffic_bytes_s=vitals.traffic_bytes_s if vitals else None,
        paused=state.paused,
        phase=state.phase,
        exit_code=state.exit_code,
    )


def window_s(ranks: Sequence[HangFacts], policy: HangPolicy) -> float:
    """Longest silence that is normal for this job, in seconds."""
    usual = max((rank.step_s for rank in ranks), default=0.0)
    gap = max((rank.longest_gap_s for rank in ranks), default=0.0)
    if usual <= 0 and gap <= 0:
        return policy.max_window_s
    wanted = max(policy.factor * usual, policy.gap_factor * gap)
    return min(max(wanted, policy.min_window_s), policy.max_window_s)


def rules_out(silent_s: float, step_s: float, longest_gap_s: float, policy: HangPolicy) -> bool:
    """Whether one rank alone shows that its job does not hang, whatever all others do: :func:`vote` finds no hang then.

    A job is as silent as its least silent rank, and its window is at least that of any of its ranks. So a thousand
    machines that train are judged by the first of them.

    Args:
        silent_s: of the rank, as in :class:`HangFacts`; so are the others.
        step_s: its usual step.
        longest_gap_s: its longest gap.
        policy: thresholds.
    """
    wanted = max(policy.factor * step_s, policy.gap_factor * longest_gap_s)
    return silent_s <= min(max(wanted, policy.min_window_s), policy.max_window_s)


def vote(
    ranks: Sequence[HangFacts], policy: HangPolicy, *, job_state: JobState = JobState.RUNNING
) -> HangVote:
    """Judge one job.

    Args:
        ranks: facts of all its ranks that are known.
        policy: thresholds.
        job_state: a job that is not running never hangs.
    """
    known, ranks = ranks, [rank for rank in ranks if not rank.ended]
    if off := _not_judged(ranks, job_state):
        return HangVote(hang=False, exempt=off)
    silent = min(rank.silent_s for rank in known)
    stopped = [rank for rank in ranks if rank.stopped_s >= policy.stopped_s]
    limit, exempt = _limit(ranks, len(known) - len(ranks), policy)
    # Whatever it was doing, a process that stays stopped does not go on by itself.
    if stopped and silent >= policy.stopped_s:
        limit, exempt = min(limit, max(policy.stopped_s, window_s(ranks, policy))), ""
    signals = _signals(ranks, silent, limit, policy)
    hang = len(signals) >= policy.votes and "silent" in signals
    return HangVote(
        hang=hang,
        signals=tuple(signals),
        silent_s=silent,
        window_s=limit,
        suspects=_suspects(ranks, policy) if hang else (),
        stopped=_stopped(ranks) if hang else (),
        exempt="" if hang else exempt,
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


def _limit(ranks: Sequence[HangFacts], ended: int, policy: HangPolicy) -> tuple[float, str]:
    """Allowed silence in seconds, and the exemption that stretches it, if any."""
    usual = window_s(ranks, policy)
    limits = {
        f"{name} (limit {policy.activity_limits_s[name]:g} s)": policy.activity_limits_s[name]
        for name in sorted({rank.activity for rank in ranks} & policy.activity_limits_s.keys())
    }
    if any(rank.steps_done == 0 for rank in ranks):
        limits[f"first step of the epoch (limit {policy.first_step_s:g} s)"] = policy.first_step_s
    if ended:
        limits[f"{ended} ranks have ended (limit {policy.end_s:g} s)"] = policy.end_s
    if not limits:
        return usual, ""
    name = max(limits, key=lambda key: limits[key])
    return max(usual, limits[name]), name


def _signals(ranks: Sequence[HangFacts], silent: float, limit: float, policy: HangPolicy) -> dict[str, str]:
    """Signals that fire -> a sentence each."""
    fired: dict[str, str] = {}
    if silent > limit:
        fired["silent"] = f"no rank completed a step for {silent:.1f} s (window {limit:.1f} s)"
    stuck = [rank for rank in ranks if rank.process_state[:1] in STUCK_STATES]
    if stuck:
        named = listed(f"{rank.rank} ({rank.process_state})" for rank in stuck)
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
    """GPUs at full utilisation and no traffic: kernels that wait for a peer look busy (BG)."""
    return all(
        rank.gpu_busy is not None
        and rank.traffic_bytes_s is not None
        and rank.gpu_busy >= policy.spinning_gpu_share
        and rank.traffic_bytes_s < policy.spinning_bytes_s
        for rank in ranks
    )


def _stopped(ranks: Sequence[HangFacts]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in ranks if rank.process_state[:1] == "T"))


def _suspects(ranks: Sequence[HangFacts], policy: HangPolicy) -> tuple[int, ...]:
    if stopped := _stopped(ranks):
        return stopped
    ahead = max(rank.steps_done for rank in ranks)
    behind = [rank.rank for rank in ranks if rank.steps_done < ahead]
    busy = [rank.rank for rank in ranks if rank.cpu_cores >= policy.idle_cores]
    few = len(ranks) / 2
    for odd in (behind, busy):
        if 0 < len(odd) < few:
            return tuple(sorted(odd))
    return ()
