"""Limits of a playbook's acts: observe, canary or act, per job and class."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.models.alert import IncidentClass
from holdfast.models.base import Frozen
from holdfast.models.job import JobSpec, Mode
from holdfast.policies.config.policy import ModesPolicy

_REACH = {Mode.OBSERVE: 0, Mode.CANARY: 1, Mode.ACT: 2}


class ModeAnswer(Frozen):
    """Whether the playbook may act on this job and these machines, and why."""

    act: bool
    mode: Mode
    reason: str


def may_act(
    spec: JobSpec, incident_class: IncidentClass, machines: Collection[str], policy: ModesPolicy
) -> ModeAnswer:
    """Apply the most careful of the job's mode, the class's and the default.

    In canary mode a listed job may be acted on with all its machines, and a listed machine in any job.
    """
    asked = {
        "the job": spec.mode,
        f"class {incident_class.value}": policy.by_class.get(incident_class, Mode.ACT),
        "the default": policy.default,
    }
    who, mode = min(asked.items(), key=lambda item: _REACH[item[1]])
    if mode is not Mode.CANARY:
        return ModeAnswer(act=mode is Mode.ACT, mode=mode, reason=f"{who} says {mode.value}")
    if spec.name in policy.canary_jobs:
        return ModeAnswer(act=True, mode=mode, reason=f"canary: job {spec.name} is listed")
    others = sorted(set(machines) - policy.canary_machines)
    if machines and not others:
        return ModeAnswer(act=True, mode=mode, reason="canary: all machines concerned are listed")
    missing = f"job {spec.name}" + (f" and {', '.join(others)}" if others else "")
    return ModeAnswer(act=False, mode=mode, reason=f"canary: {missing} not listed")
