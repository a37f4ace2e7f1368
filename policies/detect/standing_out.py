"""Ranks that only stand out, in a hang or by their pace: when their machine is evicted, and how many of a job may be.

A rank that is elsewhere than all others, or behind in its collectives, is a hint and no proof: rank 0 may prepare data
while the others wait for it, as it does at every start. Nor is a rank that is slower than its peers, which may have
more to do, while no check finds its machine slow. So a machine that stands out for the first time stays, and the
job is restarted in place. So it is with a process that a signal stopped: who sent it is unknown, and hardware did not.
Evidence of its own (a process that the kernel does not let go, an Xid, a dead link, a failed check) is judged elsewhere
and needs no second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.models.base import Frozen
from holdfast.policies.config.ladders import StandingOutPolicy
from holdfast.policies.counted import counted
from holdfast.policies.join_names import join_names


class Accusation(Frozen):
    """The machines that stood out in one hang, or one slow stretch, of a job."""

    at: float
    machines: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    """Ranks that stood out; empty: not known."""
    starting: bool = False
    """Whether it was before the first step of an epoch."""
    excuse: str = ""
    """Why that is no machine's fault; empty: it may be a machine's."""
    why: str = ""
    """Explanation that is no proof against a machine; empty: there is none."""


class Weighed(Frozen):
    """The machines to evict, and why the others are not evicted."""

    machines: tuple[str, ...] = ()
    """Machines that may be evicted."""
    spared: str = ""
    """Why no machine is evicted although some stand out; empty: none stands out, or they may be evicted."""


def weigh(
    now: Accusation,
    past: Sequence[Accusation],
    evicted_at: Iterable[float],
    job_size: int,
    policy: StandingOutPolicy,
) -> Weighed:
    """Decide whether the machines that stand out now may be evicted.

    Args:
        now: the present one.
        past: earlier ones of the same kind and job, in which machines stood out.
        evicted_at: when machines of this job were evicted for that (Unix seconds).
        job_size: its machines.
        policy: how often, within which window, how many.
    """
    if not now.machines:
        return Weighed()
    named = join_names(now.machines)
    if excuse := now.excuse or _of_the_job(now, past):
        return Weighed(spared=excuse)
    recent = [each for each in past if now.at - policy.window_s < each.at and not each.excuse]
    fresh = [name for name in now.machines if _times(name, recent) + 1 < policy.accusations]
    if fresh:
        also = f"{now.why}: " if now.why else ""
        return Weighed(
            spared=f"{also}{join_names(fresh)} stands out {_times(fresh[0], recent) + 1} of {policy.accusations} times "
            f"within {policy.window_s / 3600:g} h, and there is no other evidence against it"
        )
    gone = sum(now.at - policy.window_s < at for at in evicted_at)
    most = policy.limit(job_size)
    if gone + len(now.machines) > most:
        were = counted(gone, "machine of the job was", "machines of the job were")
        return Weighed(
            spared=f"{named} stands out, but {were} evicted for that within {policy.window_s / 3600:g} h, "
            f"limit {most} of {job_size}"
        )
    return Weighed(machines=now.machines)


def _of_the_job(now: Accusation, past: Sequence[Accusation]) -> str:
    """Return why the job's own doing makes these ranks stand out; empty: it is not known to."""
    origin = f"it comes from the job, not from {join_names(now.machines)}"
    if elsewhere := _habit(now, past):
        return f"ranks {join_names(now.ranks)} stood out on {join_names(elsewhere)} before: {origin}"
    return f"rank 0 stood out at every start: {origin}" if _prepares(now, past) else ""


def _habit(now: Accusation, past: Sequence[Accusation]) -> tuple[str, ...]:
    """Return machines on which the same ranks stood out before, and none of which stands out now."""
    if not now.ranks:
        return ()
    same = [each for each in past if each.ranks == now.ranks and each.machines]
    others = [each for each in same if not set(each.machines) & set(now.machines)]
    return tuple(dict.fromkeys(name for each in others for name in each.machines))


def _prepares(now: Accusation, past: Sequence[Accusation]) -> bool:
    """Return whether rank 0, for which the others may wait, stood out at this start and all those before."""
    ranks = {each.ranks for each in (*past, now) if each.starting}
    return now.starting and ranks == {(0,)}


def _times(machine: str, past: Sequence[Accusation]) -> int:
    return sum(machine in each.machines for each in past)
