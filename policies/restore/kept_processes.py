"""Processes of ranks that outlive their epoch: where the job's script allows it, may they? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.models.agent import Start
from holdfast.models.classes import IncidentClass
from holdfast.policies.config.keep_processes import KeepPolicy

_SHOWN = 16
"""Ranks named in one line of a report."""


def wait_s(policy: KeepPolicy, incident_class: IncidentClass, *, again: bool) -> float:
    """Return for how long processes may wait for their next epoch; 0: all are ended.

    Args:
        policy: the classes of incidents in which they may be kept.
        incident_class: what is being recovered from.
        again: whether the job was brought up for this incident before and failed: what is left in memory may be why.
    """
    return 0.0 if why_none(policy, incident_class, again=again) else policy.wait_s


def why_none(policy: KeepPolicy, incident_class: IncidentClass, *, again: bool) -> str:
    """Return why no process is kept (see :func:`wait_s`); empty: they may be."""
    if again:
        return "the job was brought up for this incident before, and failed again"
    if incident_class not in policy.classes:
        return f"{incident_class.value} is none of the policy's keep_processes.classes: memory may hold its cause"
    return ""


def by_reason(ranks: Iterable[tuple[int, str]]) -> dict[str, tuple[int, ...]]:
    """Return ranks by the reason for which their process was not kept."""
    found: dict[str, list[int]] = {}
    for rank, why in ranks:
        found.setdefault(why, []).append(rank)
    return {why: tuple(sorted(listed)) for why, listed in found.items()}


def describe(not_kept: Mapping[str, Sequence[int]]) -> list[str]:
    """Describe processes that were not kept for a report, a line for each reason."""
    return [
        f"{'ranks' if len(ranks) > 1 else 'rank'} {_listed(ranks)} got a new process: {why}"
        for why, ranks in not_kept.items()
    ]


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    return f"{shown} and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else shown


def why_ended(before: Start, after: Start) -> str:
    """Return why no process of one epoch may go on in another on the same machine; empty: they may."""
    if not after.keep:
        return "the playbook starts all processes again"
    if after.restore.tier is None:
        return "nothing is restored, and what a process keeps may be of a later step"
    names = {
        "code_version": "the code was switched",
        "script": "another script",
        "args": "other arguments",
        "env": "another environment",
        "ranks": "other ranks are on this machine",
        "world_size": "another number of ranks",
    }
    changed = [why for name, why in names.items() if getattr(before, name) != getattr(after, name)]
    return ", ".join(changed)
