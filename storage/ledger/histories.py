"""A job's whole history in one consistent view, without the bulk of its alerts and findings."""

from __future__ import annotations

from sqlalchemy import select

from holdfast.models.alert import Incident
from holdfast.models.history import Epoch, History, StateChange, Stretch
from holdfast.storage.ledger.actions import actions_without_evidence
from holdfast.storage.ledger.columns import columns, models
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.schema import ActionRow, EpochRow, IncidentRow, StateChangeRow, StretchRow


class Histories(Connection):
    """The data that a job's time is accounted from."""

    def history(self, job: str) -> History:
        """Everything since the job was last submitted.

        Raises:
            UnknownError: no such job.
        """
        with self._read() as session:
            row = job_row(session, job)
            after, since = row.submitted_epoch, row.submitted_at
            mine = (IncidentRow.job == job) & (IncidentRow.opened_at >= since)
            epochs = select(EpochRow).where(EpochRow.job == job, EpochRow.epoch > after)
            # Columns, not objects that track changes: a job of a quarter has 26,000, and is accounted each 15 s.
            stretches = columns(StretchRow, Stretch).where(StretchRow.job == job, StretchRow.epoch > after)
            acted = ActionRow.incident_id.in_(select(IncidentRow.id).where(mine))
            states = select(StateChangeRow).where(StateChangeRow.job == job, StateChangeRow.at >= since)
            return History(
                epochs=tuple(e.to(Epoch) for e in session.scalars(epochs.order_by(EpochRow.epoch))),
                stretches=tuple(models(session, stretches.order_by(StretchRow.id), Stretch)),
                incidents=tuple(
                    _incident(i)
                    for i in session.scalars(select(IncidentRow).where(mine).order_by(IncidentRow.n))
                ),
                actions=tuple(actions_without_evidence(session, acted)),
                states=tuple(c.to(StateChange) for c in session.scalars(states.order_by(StateChangeRow.id))),
                want=int((row.spec.get("elastic") or {}).get("want") or row.spec.get("machines") or 0),
            )


def _incident(row: IncidentRow) -> Incident:
    return Incident.model_validate(
        {name: getattr(row, name) for name in Incident.model_fields if name != "alerts"}
    )
