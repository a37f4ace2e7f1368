"""The proof of a recovery: the first step after an incident that no epoch had done before."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.models.agent import StepMark
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.history import Epoch


def first_at(
    incident: Incident, epochs: Sequence[Epoch], epoch: int | None, marks: Sequence[StepMark]
) -> float | None:
    """Return the time of the first new step after ``incident``; None: there is none yet.

    It is beyond what the epochs up to the incident's had reached. Where training never stopped for it (heat that went
    away by itself), it is the epoch's next step after its end: the next epoch may begin weeks later.

    Args:
        incident: open, or recovered.
        epochs: of the job, in order.
        epoch: that of ``marks``; None: its steps came while no gateway watched, and the rows show them.
        marks: steps that were completed just now.
    """
    if (ended_at := _trained_on_since(incident, epochs)) is not None:
        times = [mark.at for mark in marks if epoch == incident.epoch and mark.at > ended_at]
        if times:
            return min(times)
        if any(row.epoch == incident.epoch and (row.last_step_at or 0.0) > ended_at for row in epochs):
            return ended_at
    reached = max(
        (row.last_step or row.start_step for row in epochs if row.epoch <= incident.epoch), default=0
    )
    if epoch is not None and epoch > incident.epoch:
        times = [mark.at for mark in marks if mark.step > reached]
        if times:
            return min(times)
    later = [row for row in epochs if row.epoch > incident.epoch and (row.last_step or 0) > reached]
    if epoch is not None or not later:
        return None
    row = later[0]
    return row.first_step_at if (row.first_step or 0) > reached else row.last_step_at


def _trained_on_since(incident: Incident, epochs: Sequence[Epoch]) -> float | None:
    """Return when it ended as recovered, no other epoch begun; None: it did not end so."""
    ended_at = incident.closed_at
    if incident.state is not IncidentState.RECOVERED or ended_at is None:
        return None
    restarted = any(row.epoch > incident.epoch and row.opened_at <= ended_at for row in epochs)
    return None if restarted else ended_at
