"""Root causes that show themselves while a playbook runs: its plan changes at the next boundary between two steps."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.models.alert import Alert, AlertKind, Verdict
from holdfast.policies.classify import sure_signs
from holdfast.policies.escalate import by_hand
from holdfast.storage.ledger.one_view import one_view
from holdfast.tasks import firing, returned
from holdfast.tasks.recovery_context import RecoveryContext

CONFIDENCE = 1.0


@one_view()
def roots(case: RecoveryContext) -> dict[str, str]:
    """Return machines that serve the job now and that alerts of the incident surely accuse, with the reasons.

    None when they are more than may be evicted at once: then it is more likely that the sensor is wrong. After a wait
    alerts that are over since accuse none any more, nor does silence where they answer again.
    """
    ctx, job, incident = case.ctx, case.job_now(), case.incident
    known = firing.still(ctx, incident) if case.round else incident.alerts
    present = {machine.name: machine.incarnation for machine in ctx.ledger.machines_named(job.machines)}
    # Of one that was evicted already only a later life can be accused.
    out = returned.evicted(case)
    back = returned.reached_again(case)
    alerts = [
        each
        for each in sure_signs.of_present(known, present)
        if not _of_evicted(each, out) and not (each.kind is AlertKind.MACHINE_LOST and each.machine in back)
    ]
    found = sure_signs.find(alerts, ctx.policy.classify)
    return found if len(found) <= ctx.policy.aggregate.sure_limit(len(job.machines)) else {}


@one_view()
def asked(case: RecoveryContext) -> dict[str, str]:
    """Return machines that serve the job now and that people asked to evict while it was worked on, and who asked why.

    A person's word ends no search: what the job failed for may be another matter.
    """
    out = returned.evicted(case)
    alerts = [alert for alert in case.incident.alerts if not _of_evicted(alert, out)]
    return by_hand.asked(alerts, case.incarnations())


@one_view()
def accused(case: RecoveryContext) -> tuple[str, ...]:
    """Return the machines that the incident is about, without those that were only silent and answer again.

    One that a person named is among them in any case.
    """
    back, found = returned.reached_again(case), roots(case)
    named = {alert.machine for alert in case.incident.alerts if alert.kind is AlertKind.MANUAL}
    mine = [name for name in case.accused if name not in back or name in found or name in named]
    return tuple(dict.fromkeys((*mine, *asked(case))))


def _of_evicted(alert: Alert, out: Mapping[str, str]) -> bool:
    life = out.get(alert.machine or "")
    return life is not None and (not life or alert.incarnation in (None, life))


def verdict(case: RecoveryContext) -> Verdict | None:
    """Return the verdict from late root causes alone: no search is needed any more. None: there is none."""
    found = roots(case)
    if not found:
        return None
    return Verdict(suspects=tuple(found), confidence=CONFIDENCE, evidence=describe(found))


def describe(found: dict[str, str]) -> tuple[str, ...]:
    """Describe each for the report: the machine, the reason, and that it was not known at first."""
    return tuple(f"{name}: {why}, reported after the incident was opened" for name, why in found.items())
