"""The log of every alert that came in, with what became of it."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import delete, select

from holdfast.models.alert import Alert, AlertKind
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.schema import AlertRow

_NAMED_AT_ONCE = 500


class RecordedAlert(Alert):
    """An alert as it was received."""

    incident_id: str | None
    """The incident that it opened or joined, if any."""
    outcome: str
    """The outcome in words: opened, joined, or why nothing was done."""
    recorded_at: float
    """When the ledger took it, Unix seconds on the gateway's clock."""


class Alerts(Connection):
    """Every signal, including those that were refused, so that the reason can be read afterwards."""

    def record_alert(self, alert: Alert, incident_id: str | None, outcome: str) -> None:
        """Write down an alert and what became of it."""
        with self._write() as session:
            session.add(
                AlertRow(
                    kind=alert.kind,
                    job=alert.job,
                    machine=alert.machine,
                    epoch=alert.epoch,
                    incident_id=incident_id,
                    outcome=outcome,
                    recorded_at=self._clock.now(),
                    body=alert.model_dump(include=set(Alert.model_fields)),
                )
            )

    def forget_alerts(self, before: float, most: int = 2000) -> int:
        """Forget the oldest alerts recorded before a time (Unix seconds) that led to no incident; return how many.

        At most so many in one transaction: others wait for it. They are looked for before it: most of what is read
        stays.
        """
        old = (AlertRow.recorded_at < before) & AlertRow.incident_id.is_(None)
        chosen = select(AlertRow.id).where(old).order_by(AlertRow.id).limit(most)
        with self._read() as session:
            ids = session.scalars(chosen).all()
        if ids:
            with self._write() as session:
                session.execute(delete(AlertRow).where(AlertRow.incident_id.is_(None), AlertRow.id.in_(ids)))
        return len(ids)

    def alerts(self, incident_id: str | None = None, limit: int = 200) -> list[RecordedAlert]:
        """Return the newest ``limit`` alerts, newest first; of one incident if given."""
        query = select(AlertRow).order_by(AlertRow.id.desc()).limit(limit)
        if incident_id is not None:
            query = query.where(AlertRow.incident_id == incident_id)
        with self._read() as session:
            return [_recorded(row) for row in session.scalars(query)]

    def alerts_between(self, since: float, until: float, limit: int = 5000) -> list[RecordedAlert]:
        """Return the first ``limit`` alerts recorded after ``since`` up to ``until`` (Unix seconds), oldest first."""
        within = (AlertRow.recorded_at > since) & (AlertRow.recorded_at <= until)
        query = select(AlertRow).where(within).order_by(AlertRow.id).limit(limit)
        with self._read() as session:
            return [_recorded(row) for row in session.scalars(query)]

    def alerts_of(self, machine: str, limit: int = 100, since: float = 0.0) -> list[RecordedAlert]:
        """Return the newest ``limit`` alerts about one machine that were recorded after ``since``, newest first."""
        of = (AlertRow.machine == machine) & (AlertRow.recorded_at > since)
        query = select(AlertRow).where(of).order_by(AlertRow.id.desc()).limit(limit)
        with self._read() as session:
            return [_recorded(row) for row in session.scalars(query)]

    def alerts_of_kinds(
        self, machines: Iterable[str], kinds: Iterable[AlertKind], since: float
    ) -> dict[str, list[RecordedAlert]]:
        """By machine its alerts of some kinds that were recorded after ``since``, oldest first; read together."""
        names = list(dict.fromkeys(machines))
        found: dict[str, list[RecordedAlert]] = {name: [] for name in names}
        wanted = AlertRow.kind.in_(list(kinds)) & (AlertRow.recorded_at > since)
        with self._read() as session:
            for at in range(0, len(names), _NAMED_AT_ONCE):
                some = wanted & AlertRow.machine.in_(names[at : at + _NAMED_AT_ONCE])
                for row in session.scalars(select(AlertRow).where(some).order_by(AlertRow.id)):
                    found[str(row.machine)].append(_recorded(row))
        return found


def _recorded(row: AlertRow) -> RecordedAlert:
    known = {"incident_id": row.incident_id, "outcome": row.outcome, "recorded_at": row.recorded_at}
    return RecordedAlert.model_validate(row.body | known)
