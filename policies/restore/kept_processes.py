"""Processes of ranks that outlive their epoch: where the job's script allows it, may they? Pure."""

from __future__ import annotations

from holdfast.models.agent import Start
from holdfast.models.classes import IncidentClass
from holdfast.policies.config.keep_processes import KeepPolicy


def wait_s(policy: KeepPolicy, incident_class: IncidentClass, *, again: bool) -> float:
    """Return for how long processes may wait for their next epoch; 0: all are ended.

    Args:
        policy: the classes of incidents in which they may be kept.
        incident_class: what is being recovered from.
        again: whether the job was brought up for this incident before and failed: what is left in memory may be why.
    """
    return 0.0 if again or incident_class not in policy.classes else policy.wait_s


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
