"""The failures of one incident: the one that opened it, and those of epochs that it started and that made no step.

A rank that is killed while the job comes up again after the death of another one is a second failure, not the first
again: it has a ladder of its own, whatever incident it joined.
"""

from __future__ import annotations

from holdfast.models.alert import Incident, Rung
from holdfast.models.base import Frozen
from holdfast.policies.classify.signature import Signature, same
from holdfast.tasks.history import signature_of
from holdfast.tasks.recovery_context import RecoveryContext


class Falls(Frozen):
    """The newest failure beside those before it."""

    newest: Signature
    again: bool = False
    """It came before in this incident."""
    others: frozenset[int] = frozenset()
    """Epochs that failed in another way."""


def of(case: RecoveryContext) -> Falls:
    """Compare the failure of the broken epoch with the earlier ones of the incident.

    An epoch of which no cause is known failed as the first one did.
    """
    incident, epochs = case.incident, case.ctx.ledger.epochs(case.job)
    first = signature_of(case.ctx, incident, epochs)
    if not case.again:
        return Falls(newest=first)
    known = {incident.epoch: first}
    for epoch in epochs:
        if max(incident.epoch, case.went_on) < epoch.epoch <= case.broken_epoch:
            found = signature_of(case.ctx, _of_epoch(incident, epoch.epoch), epochs)
            known[epoch.epoch] = found if found.what else first
    newest = known.pop(case.broken_epoch, first)
    alike = {epoch for epoch, found in known.items() if same(found, newest)}
    # The first is known best: its rank's own step, and all that was found out about it.
    return Falls(
        newest=first if incident.epoch in alike else newest,
        again=bool(alike),
        others=frozenset(known.keys() - alike),
    )


def tried(case: RecoveryContext, falls: Falls) -> tuple[Rung, ...]:
    """Return the rungs that the incident tried for its newest failure, oldest first."""
    chosen = [action.result or {} for action in case.done("rung")]
    return tuple(Rung(str(each["rung"])) for each in chosen if each.get("epoch") not in falls.others)


def _of_epoch(incident: Incident, epoch: int) -> Incident:
    """Return the incident as if it had been opened by what happened in ``epoch``."""
    alerts = tuple(alert for alert in incident.alerts if alert.epoch == epoch)
    return incident.model_copy(update={"epoch": epoch, "alerts": alerts})
