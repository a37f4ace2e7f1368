"""Acts that a person approves first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.models.alert import IncidentClass
from holdfast.models.base import Frozen
from holdfast.models.machine import Scope
from holdfast.policies.config.ladders import ApprovalPolicy
from holdfast.policies.counted import counted
from holdfast.policies.escalate.waits import RUNS_ON, duration


class Question(Frozen):
    """A question to a person."""

    whom: str
    """The machines, in words."""
    scope: Scope
    incident_class: IncidentClass
    deadline_s: float
    default: str
    """``refuse`` or ``approve``: the answer that counts at the deadline."""


def question(asked: Question, why: str) -> str:
    """Return the question with its options, the consequence of each, and the default when no answer comes."""
    trains = asked.incident_class in RUNS_ON
    no = (
        "the job runs on as it is"
        if trains
        else "nothing is evicted, and the job is started on the machines that it has as soon as it can run on them"
    )
    return (
        f"evict {asked.whom} (scope {asked.scope.value}): {why}. Yes: out of service, a standby takes over"
        f"{', which stops the job for a moment' if trains else ''}. No: {no}. "
        f"No answer within {duration(asked.deadline_s)}: {asked.default}"
    )


def within_s(intent: Mapping[str, Any], begun_at: float, policy: ApprovalPolicy) -> float:
    """Return how long a question that was asked at ``begun_at`` may be answered: to be measured by a clock never set.

    Its deadline is for people: a wall clock that is set by hours neither refuses nor approves.
    """
    return float(intent.get("deadline", begun_at + policy.deadline_s)) - begun_at


def why_ask(
    incident_class: IncidentClass, machines: int, scope: Scope, policy: ApprovalPolicy, dead: int = 0
) -> str:
    """Return why an eviction of so many machines must be approved; empty: it need not.

    ``dead`` of them are dead for sure, and standbys can take their places.
    """
    for rule in policy.rules:
        if rule.incident_class not in (None, incident_class) or rule.scope not in (None, scope):
            continue
        asked = machines if rule.dead_too else machines - dead
        if asked > rule.machines_over:
            whose = f"{incident_class.value} " if rule.incident_class else ""
            return (
                f"{whose}evictions of more than {counted(rule.machines_over, 'machine', 'machines')} at once "
                f"({asked}, scope {scope.value}) need a person's approval"
            )
    return ""
