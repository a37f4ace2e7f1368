"""A person's no to the eviction of a machine: the same sign of it does not stop the job to ask the same again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.models.alert import MACHINE_KINDS, Alert, Incident
from holdfast.models.history import Action, ActionState
from holdfast.policies.classify import sure_signs
from holdfast.policies.classify.identity import identity
from holdfast.policies.config.policy import ClassifyPolicy

FOR_S = 86_400.0
"""A no counts for so long."""
_NO_PERSON = frozenset({"the policy file", "the monitor"})


def by_whom(actions: Iterable[Action]) -> str:
    """Return the person whose no is an incident's newest answer; empty: there is none."""
    answers = [each.result for each in actions if each.kind == "approve" and each.state is ActionState.DONE]
    if not answers or answers[-1].get("approve") or answers[-1].get("by") in _NO_PERSON:
        return ""
    return str(answers[-1].get("by") or "somebody")


def covers(past: Incident, alerts: Sequence[Alert], now: float, policy: ClassifyPolicy) -> bool:
    """Return whether ``alerts`` say nothing that was not known when the eviction was refused.

    Another sign, another device, another life of the machine, a rank that ended or a person's word is new.
    """
    if past.closed_at is None or now - past.closed_at > FOR_S:
        return False
    if any(alert.kind not in MACHINE_KINDS for alert in alerts):
        return False
    known = {_sign(alert, policy) for alert in past.alerts}
    return all(_sign(each, policy) in known for each in alerts if sure_signs.is_sure(each, policy))


def _sign(alert: Alert, policy: ClassifyPolicy) -> tuple[str | None, str]:
    plain = alert.model_copy(update={"fingerprint": "", "epoch": None, "job": None})
    return alert.incarnation, identity(plain, policy)
