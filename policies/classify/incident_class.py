"""Classification of alerts into an incident class: sure signs act at once, the rest is weighed.

The answer is one of three: :class:`~holdfast.models.alert.Classification` (open an incident),
:class:`TooEarly` (only cascading failures so far; ask again) or :class:`NoAction` (nothing to act on, and why). It does
not depend on the order in which alerts arrived, nor on duplicates.

The meaning of each kind is a table (:mod:`holdfast.policies.classify.meaning`); here is what takes precedence, and why:
a human's report; a machine that is surely gone; a number that is not finite (an assertion on it is a cascading
failure); a process that died by itself, for the reason found beside it; no progress, likewise; what playbooks of other
packages wait for; what else acts alone or came again; a code update and a planned move (they can wait).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.alert import (
    MACHINE_KINDS,
    NETWORK_KINDS,
    Alert,
    AlertKind,
    Classification,
    IncidentClass,
)
from holdfast.models.alert_kinds.meaning import Acts, Beside
from holdfast.policies.classify import (
    admission_filter,
    common_cause,
    exits,
    shared_storage,
    sure_signs,
    suspects,
)
from holdfast.policies.classify.beside import described, explaining, number, too_many
from holdfast.policies.classify.decision import Decision, JobContext, NoAction, TooEarly
from holdfast.policies.classify.ended import of_exits
from holdfast.policies.classify.identity import in_order
from holdfast.policies.classify.meaning import meaning
from holdfast.policies.classify.requests import is_update, manual, move, update
from holdfast.policies.config import declared
from holdfast.policies.config.policy import Policy
from holdfast.policies.counted import counted
from holdfast.policies.detect import switches
from holdfast.policies.escalate import repeated
from holdfast.policies.join_names import join_names

_OF_NO_MACHINE = (IncidentClass.SILENT_CORRUPTION, IncidentClass.CHECKPOINT_UNRESTORABLE)


def classify(alerts: Sequence[Alert], context: JobContext, policy: Policy | None = None) -> Decision:
    """Decide what the alerts mean for ``context.job``.

    Args:
        alerts: signals that no incident has taken yet, admitted (:mod:`holdfast.policies.classify.admission_filter`).
        context: the job and the facts known about it.
        policy: thresholds; None: the packaged ones.
    """
    policy = policy or Policy.load()
    kept, dropped = admission_filter.of_the_present(in_order(alerts, policy.classify), context.job)
    if not kept:
        return NoAction(reason="; ".join(dropped) or "no alerts")
    decision = (
        manual(kept)
        or _machine(kept, context, policy)
        or _non_finite(kept)
        or of_exits(kept, context, policy)
        or _unreachable(kept, context)
        or _hang(kept, context, policy)
        or _of_packages(kept, context, policy)
        or _other(kept, context, policy)
        or update(kept, context)
        or move(kept, context, policy)
        or _cascading_failures(kept, context, policy)
    )
    if isinstance(decision, Classification):
        named = suspects.named(kept, decision.machine, context.job)
        meanwhile = [context.meanwhile] if context.meanwhile else []
        return decision.model_copy(
            update={"reasons": (*decision.reasons, *meanwhile, *dropped), "suspects": named}
        )
    running = [f"version {context.job.code_version} is running already" for each in kept if is_update(each)]
    return decision or NoAction(reason="; ".join((*running, *_observations(kept), *dropped)))


def sure_machines(
    alerts: Sequence[Alert], context: JobContext, policy: Policy | None = None
) -> tuple[str, ...]:
    """Return all machines of the job that the alerts surely accuse, in order of first alert."""
    policy = policy or Policy.load()
    kept, _ = admission_filter.of_the_present(in_order(alerts, policy.classify), context.job)
    return tuple(sure_signs.find(kept, policy.classify))


def _machine(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | None:
    signs = sure_signs.find(alerts, policy.classify)
    if not signs:
        return None
    reasons = tuple(f"{machine}: {why}" for machine, why in signs.items())
    limit = policy.aggregate.sure_limit(len(context.job.machines))
    if len(signs) > limit:
        return too_many(len(signs), reasons, context, limit, IncidentClass.MACHINE_FAULT)
    root = next(alert for alert in alerts if sure_signs.is_sure(alert, policy.classify) and alert.machine)
    return Classification(
        incident_class=IncidentClass.MACHINE_FAULT,
        confidence=1.0 if len(signs) == 1 else 0.9,
        machine=next(iter(signs)),
        reasons=reasons,
        root=root.key,
    )


def _non_finite(alerts: Sequence[Alert]) -> Classification | None:
    found = [alert for alert in alerts if alert.kind is AlertKind.NON_FINITE]
    if not found:
        return None
    first = min(found, key=lambda alert: (number(alert.evidence.get("step")), alert.rank or 0))
    what = f"{first.evidence.get('metric', 'loss')} = {first.evidence.get('value')}"
    ranks = sorted({alert.rank for alert in found if alert.rank is not None})
    # The loss is reduced over all ranks: which rank reported first hardly points to the culprit.
    return Classification(
        incident_class=IncidentClass.NAN_LOSS,
        confidence=1.0,
        machine=None,
        rank=None,
        reasons=(f"{what} at step {first.evidence.get('step')}, reported by ranks {ranks}",),
        root=first.key,
    )


def _unreachable(alerts: Sequence[Alert], context: JobContext) -> Classification | None:
    """Accuse the machine of the job that does not answer while peers lost a connection."""
    cascades = [alert for alert in alerts if exits.is_cascade(alert)]
    silent = [name for name in context.job.machines if name in context.unreachable]
    if not cascades or not silent:
        return None
    several = f"{len(silent)} machines do not answer: " if len(silent) > 1 else ""
    return Classification(
        incident_class=IncidentClass.MACHINE_FAULT,
        confidence=0.9 if len(silent) == 1 else 0.5,
        machine=silent[0],
        reasons=(
            f"{several}agent of {join_names(silent)} does not answer",
            counted(
                len(cascades), "rank lost the connection to a peer", "ranks lost the connection to a peer"
            ),
        ),
    )


def _hang(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | None:
    found = [alert for alert in alerts if alert.kind is AlertKind.HANG]
    if not found:
        return None
    first = found[0]
    signals = ", ".join(map(str, first.evidence.get("signals", ()))) or "no progress"
    missing = "no rank wrote to its log" if first.evidence.get("plain") else "no step"
    reasons = [f"{missing} for {number(first.evidence.get('silent_s')):.1f} s: {signals}"]
    if not first.evidence.get("stopped") and (waiting := shared_storage.waiting(alerts, context.job)):
        return Classification(
            incident_class=IncidentClass.STORAGE_FAULT,
            confidence=0.8,
            reasons=(*reasons, shared_storage.describe(alerts, waiting, context.job)),
            root=first.key,
        )
    incident_class, machine = IncidentClass.JOB_HANG, first.machine
    # One machine's broken link or mount makes every rank wait. A process that is stopped needs no such explanation.
    stopped = first.evidence.get("stopped")
    if not stopped and (beside := explaining(alerts, {Beside.HANG}, None, policy)):
        incident_class, machine = meaning(beside, policy.classify).means, beside.machine or machine
        reasons.append(described(beside))
    return Classification(
        incident_class=incident_class,
        confidence=0.9,
        machine=machine,
        rank=first.rank if machine == first.machine else None,
        reasons=tuple(reasons),
        root=first.key,
    )


def _of_packages(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | None:
    """Find an alert that a playbook of another package waits for, by its entry in the policy file; the earliest."""
    for alert in alerts:
        entry = declared.meaning(alert, policy.playbooks)
        if entry is None:
            continue
        incident_class, confidence = entry
        same = [other for other in alerts if declared.meaning(other, policy.playbooks) == entry]
        machines = list(dict.fromkeys(other.machine for other in same if other.machine))
        reasons = tuple(f"{other.machine or 'the job'}: {sure_signs.describe(other)}" for other in same)
        limit = policy.aggregate.limit(len(context.job.machines))
        if len(machines) > limit:
            return too_many(len(machines), reasons, context, limit, incident_class)
        return Classification(
            incident_class=incident_class,
            confidence=confidence,
            machine=alert.machine,
            rank=alert.rank,
            reasons=reasons,
            root=alert.key,
        )
    return None


def _other(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Classification | TooEarly | None:
    """Classify any other signal that acts alone, or came again: by the table's order, then the earliest."""
    acting = [alert for alert in alerts if meaning(alert, policy.classify).acts is Acts.ALONE]
    acting += repeated.find(alerts, policy.classify)
    if not acting:
        return None
    root = min(acting, key=lambda alert: alert.kind.row.precedence)
    if wait := _switch_may_explain(root, alerts, context, policy):
        return wait
    row = meaning(root, policy.classify)
    same = [alert for alert in acting if meaning(alert, policy.classify).means is row.means]
    machines = list(dict.fromkeys(alert.machine for alert in same if alert.machine))
    reasons = tuple(f"{alert.machine or 'the job'}: {sure_signs.describe(alert)}" for alert in same)
    machine, incident_class = root.machine, row.means
    if row.means is IncidentClass.FAIL_SLOW:
        others = common_cause.apart(alerts, context.job, policy)
        if beside := explaining(others, {Beside.SLOW}, machine, policy):
            incident_class, machine = meaning(beside, policy.classify).means, beside.machine
            reasons = (*reasons, described(beside))
        elif shared := common_cause.of_pace(alerts, context.job, policy):
            reasons = (*reasons, shared)
    elif row.means in _OF_NO_MACHINE and root.kind is not AlertKind.REPLICA_DIFFERS:
        machine = None  # as for NaN: the first reporter hardly points to the culprit
    elif len(machines) > (limit := policy.aggregate.limit(len(context.job.machines))):
        switch = switches.shared(machines, alerts, policy.detect.network.switches)
        if not switch:
            return too_many(len(machines), reasons, context, limit, row.means)
        machine, reasons = None, (f"{len(machines)} machines of switch {switch}", *reasons)
    return Classification(
        incident_class=incident_class,
        confidence=row.confidence,
        machine=machine,
        rank=root.rank if machine == root.machine else None,
        reasons=reasons,
        root=root.key,
    )


def _switch_may_explain(
    root: Alert, alerts: Sequence[Alert], context: JobContext, policy: Policy
) -> TooEarly | None:
    """Wait where a port failed again and so did others below its switch: two rounds in a row name the switch.

    Until then no machine is evicted for it.
    """
    limits = policy.detect.network
    if root.kind not in NETWORK_KINDS or not limits.switches:
        return None
    lost = [alert for alert in alerts if alert.kind in NETWORK_KINDS and alert.machine]
    found = switches.suspected((str(alert.machine) for alert in lost), context.job.machines, limits)
    switch = next((name for name, below in found.items() if root.machine in below), "")
    until = min(alert.at for alert in lost) + (limits.switch_misses + 1) * policy.detect.intervals.network_s
    if not switch or context.now >= until:
        return None
    return TooEarly(
        until_s=until, why=f"{len(found[switch])} machines below switch {switch}: it may be the switch"
    )


def _cascading_failures(alerts: Sequence[Alert], context: JobContext, policy: Policy) -> Decision | None:
    """Judge lost-peer exits alone: wait a moment for the root cause; then it is a crash without a culprit."""
    cascades = [alert for alert in alerts if exits.is_cascade(alert)]
    if not cascades:
        return None
    # From the first: a steady trickle of cascading failures must not put the decision off for ever.
    first = min(alert.at for alert in cascades)
    doubtful = [name for name in context.job.machines if name in context.doubtful]
    # Counted from when it was heard: a machine's clock may be minutes off.
    began = first if context.received_at is None else context.received_at
    until = began + (max(policy.classify.settle_s, context.doubt_s) if doubtful else policy.classify.settle_s)
    if first < context.listening_since:
        until = max(until, context.listening_since + policy.classify.late_s)
    ranks = sorted({alert.rank for alert in cascades if alert.rank is not None})
    if context.now < until:
        why = f"{join_names(doubtful)} may be lost" if doubtful else "the peer's own report may still come"
        return TooEarly(until_s=until, why=f"ranks {ranks} lost a peer; {why}")
    reason = f"ranks {ranks} lost a peer"
    if context.ended:
        named = (
            f"rank {context.ended[0]}" if len(context.ended) == 1 else f"ranks {join_names(context.ended)}"
        )
        reason = f"{named} ended with status 0 before the others, by the job's own doing; {reason}"
    else:
        reason += ", and no rank or machine reported a cause"
    return Classification(
        incident_class=IncidentClass.JOB_CRASH,
        confidence=0.5,
        rank=context.ended[0] if len(context.ended) == 1 else None,
        reasons=(reason, *_observations(alerts)),
    )


def _observations(alerts: Sequence[Alert]) -> list[str]:
    """Return descriptions of observations that are no incident by themselves."""
    return [
        f"{alert.kind.value} on {alert.machine} alone is no incident: {sure_signs.describe(alert)}"
        for alert in alerts
        if alert.kind in MACHINE_KINDS or alert.kind in (AlertKind.EXTERNAL_SERVICE, AlertKind.RANK_LOG)
    ]
