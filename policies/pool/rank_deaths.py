"""Ranks that die again and again on one machine, and nowhere else: a fault of the machine.

It is none where the job explains it: its own code raised; the same failure, or the same rank, died on another machine
too, also again and again in other jobs; only rank 0 of it dies, which has duties of its own; or they die at one step
of the training, whose data is the same each time.

Errors of the GPU (CUDA, HIP) accuse the hardware more than a signal does: they count for longer, so that a GPU that
fails once an hour is not retried for ever.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from holdfast.models.alert import Alert
from holdfast.models.base import Frozen
from holdfast.policies.classify import exits, usage_errors
from holdfast.policies.classify.signature import same_place, what
from holdfast.policies.config.ladders import FlapPolicy, GpuErrorsPolicy
from holdfast.policies.config.policy import ClassifyPolicy
from holdfast.policies.pool import flapping

_BY_ITS_AGENT = "AgentRestarted"
"""Failure name when the agent took the rank along: that is counted as the agent's."""


class Death(Frozen):
    """The end of a rank by itself, not because a peer ended."""

    at: float
    job: str
    machine: str
    rank: int
    what: str
    raised: bool = False
    """Whether an exception was raised in the job's own code, or by how the job is set up; its command line too."""
    of_gpu: bool = False
    """Whether an error of the GPU ended it."""
    step: int | None = None
    """Newest complete step; None: not known."""


def death(alert: Alert, at: float, step: int | None, policy: ClassifyPolicy) -> Death | None:
    """Return the death that an exit reports; None: the rank is not known, or an agent took it along.

    Args:
        alert: the exit.
        at: when it was taken up (Unix seconds): a machine's clock may be off.
        step: newest step that was complete.
        policy: defines which exceptions are programming errors.
    """
    how = what(alert)
    if alert.job is None or alert.machine is None or alert.rank is None or how == _BY_ITS_AGENT:
        return None
    cause = alert.evidence.get("cause")
    own = exits.is_user_code(alert, policy) or cause in ("code", "setup") or usage_errors.is_refusal(alert)
    raised = own or (bool(alert.evidence.get("user_frame")) and cause != "gpu")
    known = {"at": at, "job": alert.job, "machine": alert.machine, "rank": alert.rank}
    return Death.model_validate(
        known | {"what": how, "raised": raised, "of_gpu": cause == "gpu", "step": step}
    )


def why(
    machine: str, deaths: Sequence[Death], now: float, policy: FlapPolicy, others: Sequence[Death] = ()
) -> str:
    """Return why the deaths on ``machine`` are its fault; empty: they are not.

    Args:
        machine: its name.
        deaths: of the jobs that it served, on all their machines.
        now: Unix seconds.
        policy: how often, within which window, and what counts as one death.
        others: deaths of the other jobs. Where ranks of such die again and again in the same way on another machine, it
            is what both have in common: a killer of processes, a driver, an image.
    """
    since = now - policy.window_s
    mine = _on_it_alone(machine, deaths, since)
    times = flapping.since_counted((each.at for each in _at_steps_of_their_own(mine)), policy.apart_s)
    if len(times) < policy.count or _is_common({each.what for each in mine}, machine, others, since, policy):
        return ""
    return (
        f"ranks died on it, and on no other machine, {len(times)} times within {policy.window_s / 60:g} min"
    )


def _is_common(
    failures: Set[str], machine: str, others: Sequence[Death], since: float, policy: FlapPolicy
) -> bool:
    times: dict[str, list[float]] = {}
    for each in others:
        if each.machine != machine and each.what in failures and not each.raised and each.at > since:
            times.setdefault(each.machine, []).append(each.at)
    return any(len(flapping.since_counted(found, policy.apart_s)) > 1 for found in times.values())


def why_of_gpu(machine: str, deaths: Sequence[Death], now: float, policy: GpuErrorsPolicy) -> str:
    """Return why errors of the GPU on ``machine`` are its fault; empty: they are not. Arguments: as of :func:`why`."""
    mine = _on_it_alone(machine, [each for each in deaths if each.of_gpu], now - policy.window_s)
    if (times := len(_at_steps_of_their_own(mine))) < policy.count:
        return ""
    return (
        f"errors of the GPU ended ranks on it, and on no other machine, {times} times "
        f"within {policy.window_s / 3600:g} h"
    )


def _on_it_alone(machine: str, deaths: Sequence[Death], since: float) -> list[Death]:
    """Return the deaths on ``machine`` that nothing about the job explains, oldest first."""
    recent = sorted((each for each in deaths if since < each.at), key=lambda each: each.at)
    elsewhere = [each for each in recent if each.machine != machine]
    failures = {(each.job, each.what) for each in elsewhere}
    habits = {(each.job, each.rank) for each in elsewhere}
    mine = [
        each
        for each in recent
        if each.machine == machine
        and not each.raised
        and (each.job, each.what) not in failures
        and (each.job, each.rank) not in habits
    ]
    counted = [each for each in mine if each.job not in _of_rank_0_alone(mine)]
    return [] if all(each.rank == 0 for each in counted) else counted


def _of_rank_0_alone(deaths: Sequence[Death]) -> set[str]:
    """Return the jobs of which rank 0 died again and again, and no other rank: the job's, whichever job comes next."""
    ranks: dict[str, list[int]] = {}
    for each in deaths:
        ranks.setdefault(each.job, []).append(each.rank)
    return {job for job, died in ranks.items() if len(died) > 1 and not any(died)}


def _at_steps_of_their_own(deaths: Sequence[Death]) -> list[Death]:
    found: list[Death] = []
    for each in deaths:
        if not any(each.job == other.job and same_place(each.step, other.step) for other in found):
            found.append(each)
    return found
