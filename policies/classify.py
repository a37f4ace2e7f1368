"""From alerts to an incident class: sure signs act at once, the rest is weighed.

The answer is one of three: :class:`~holdfast.models.alert.Classification` (open an incident),
:class:`Wait` (only echoes so far; ask again) or :class:`NoAction` (nothing to act on, and why). It does not
depend on the order in which alerts arrived, nor on duplicates.

Order of precedence, and why: what a human said; a machine that is surely gone; a number that is not finite
(an assertion on it is an echo); a process that died by itself; no progress; a code update (it can wait).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.policies import exits, sure_signs
from holdfast.policies.policy import Policy
from holdfast.policies.screening import screen


class JobContext(Frozen):
    """What is known of the job beside the alerts."""

    job: Job
    now: float
    """Unix seconds."""
    unreachable: frozenset[str] = frozenset()
    """Machines whose agent does not answer."""
    code_changed_at: float | None = None
    """When the running code version was switched to; None: never since the submission."""
    incarnations: Mapping[str, str] = Field(default_factory=dict)
    """Present incarnation of each machine; alerts of another one are stale. Empty: not checked."""


class Wait(Frozen):
    """Too early: the root of what is seen has not shown itself yet."""

    until_s: float
    """Unix time at which to ask again at the latest."""
    why: str


class NoAction(Frozen):
    """Nothing to act on."""

    reason: str


Decision = Classification | Wait | NoAction


def classify(alerts: Sequence[Alert], context: JobContext, policy: Policy | None = None) -> Decision:
    """Decide what the alerts mean for ``context.job``.

    Args:
        alerts: signals that no incident has taken yet.
        context: the job and what is known of it.
        policy: thresholds; None: the packaged ones.
    """
    policy = policy or Policy.load()
    screened = screen(alerts, context.job, context.now, context.incarnations, policy.classify)
    kept, dropped = screened.kept, screened.dropped
    if not kept:
        return NoAction(reason="; ".join(dropped) or "no alerts")
    decision = (
        _manual(kept)
        or _machine(kept, context, policy)
        or _non_finite(kept)
        or exits.root_cause(kept, context.job, context.code_changed_at, policy.classify)
        or _unreachable(kept, context)
        or _hang(kept)
        or _update(kept)
        or _echoes(kept, context, policy)
    )
    if isinstance(decision, Classification):
        return decision.model_copy(update={"reasons": (*decision.reasons, *dropped)})
    return decision or NoAction(reason="; ".join((*_observations(kept), *dropped)))


def sure_machines(
    alerts: Sequence[Alert], context: JobContext, policy: Policy | None = None
) -> tuple[str, ...]:
    """All machines of the job that the alerts surely accuse, first seen first."""
    policy = policy or Policy.load()
    screened = screen(alerts, context.job, context.now, context.incarnations, policy.classify)
    return tuple(sure_signs.find(screened.kept, policy.classify))


def _manual(alerts: Sequence[Alert]) -> Classification | None:
    manual = next((alert for alert in alerts if alert.kind is AlertKind.MANUAL), None)
    if manual is None:
        return None
    wanted = IncidentClass(manual.evidence.get("class") or IncidentClass.JOB_CRASH)
    said = f"{manual.evidence.get('by') or 'somebody'} asked for {wanted.value}"
    reasons = [f"{said}: {manual.evidence['text']}" if manual.evidence.get("text") else said]
    if wanted is IncidentClass.MACHINE_FAULT and manual.machine is None:
        wanted = IncidentClass.JOB_CRASH
        reasons.append("no machine was named, so it is looked for as after a crash")
    return Classification(
        incident_class=wanted,
        confidence=1.0,
        machine=manual.machine,
        rank=manual.rank,
        reasons=tuple(reasons),
    )


def _machine(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | None:
    signs = sure_signs.find(alerts, policy.classify)
    if not signs:
        return None
    reasons = tuple(f"{machine}: {why}" for machine, why in signs.items())
    limit = policy.aggregate.limit(len(context.job.machines))
    if len(signs) > limit:
        return Classification(
            incident_class=IncidentClass.MACHINE_FAULT,
            confidence=0.3,
            machine=None,
            reasons=(
                f"{len(signs)} machines at once, more than the over-eviction limit of {limit} for "
                f"{len(context.job.machines)} machines: a common cause is likely, a human decides",
                *reasons,
            ),
        )
    return Classification(
        incident_class=IncidentClass.MACHINE_FAULT,
        confidence=1.0 if len(signs) == 1 else 0.9,
        machine=next(iter(signs)),
        reasons=reasons,
    )


def _non_finite(alerts: Sequence[Alert]) -> Classification | None:
    found = [alert for alert in alerts if alert.kind is AlertKind.NON_FINITE]
    if not found:
        return None
    first = min(found, key=lambda alert: (_number(alert.evidence.get("step")), alert.rank or 0))
    what = f"{first.evidence.get('metric', 'loss')} = {first.evidence.get('value')}"
    ranks = sorted({alert.rank for alert in found if alert.rank is not None})
    # The loss is reduced over all ranks: which rank reported first says little about the culprit.
    return Classification(
        incident_class=IncidentClass.NAN_LOSS,
        confidence=1.0,
        machine=None,
        rank=None,
        reasons=(f"{what} at step {first.evidence.get('step')}, reported by ranks {ranks}",),
    )


def _unreachable(alerts: Sequence[Alert], context: JobContext) -> Classification | None:
    """Peers lost a connection and a machine of the job does not answer: that machine."""
    echoes = [alert for alert in alerts if exits.is_cascade(alert)]
    silent = [name for name in context.job.machines if name in context.unreachable]
    if not echoes or not silent:
        return None
    several = f"{len(silent)} machines do not answer: " if len(silent) > 1 else ""
    return Classification(
        incident_class=IncidentClass.MACHINE_FAULT,
        confidence=0.9 if len(silent) == 1 else 0.5,
        machine=silent[0],
        reasons=(
            f"{several}agent of {', '.join(silent)} does not answer",
            f"{len(echoes)} ranks lost the connection to a peer",
        ),
    )


def _hang(alerts: Sequence[Alert]) -> Classification | None:
    found = [alert for alert in alerts if alert.kind is AlertKind.HANG]
    if not found:
        return None
    first = found[0]
    signals = ", ".join(map(str, first.evidence.get("signals", ()))) or "no progress"
    return Classification(
        incident_class=IncidentClass.JOB_HANG,
        confidence=0.9,
        machine=first.machine,
        rank=first.rank,
        reasons=(f"no step for {_number(first.evidence.get('silent_s')):.1f} s: {signals}",),
    )


def _update(alerts: Sequence[Alert]) -> Classification | None:
    updates = [alert for alert in alerts if alert.kind is AlertKind.CODE_UPDATE]
    if not updates:
        return None
    newest = updates[-1]
    return Classification(
        incident_class=IncidentClass.CODE_UPDATE,
        confidence=1.0,
        reasons=(f"update to {newest.evidence.get('version')} ({newest.evidence.get('when', 'now')})",),
    )


def _echoes(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Decision | None:
    """Only lost-peer exits: wait a moment for the root; then it is a crash without a culprit."""
    echoes = [alert for alert in alerts if exits.is_cascade(alert)]
    if not echoes:
        return None
    # From the first: a steady trickle of echoes must not put the decision off for ever.
    until = min(alert.at for alert in echoes) + policy.classify.settle_s
    ranks = sorted({alert.rank for alert in echoes if alert.rank is not None})
    if context.now < until:
        return Wait(until_s=until, why=f"ranks {ranks} lost a peer; the peer's own report may still come")
    return Classification(
        incident_class=IncidentClass.JOB_CRASH,
        confidence=0.5,
        reasons=(
            f"ranks {ranks} lost a peer, and no rank or machine reported a cause",
            *_observations(alerts),
        ),
    )


def _observations(alerts: Sequence[Alert]) -> list[str]:
    """What was seen but is no incident by itself."""
    return [
        f"{alert.kind.value} on {alert.machine} alone is no incident: {sure_signs.describe(alert)}"
        for alert in alerts
        if alert.kind in (AlertKind.XID, AlertKind.HOST_FAULT)
    ]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
