"""Waits of incidents whose playbooks met a limit, and how they are taken up again."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func, select

from holdfast.errors import StaleError
from holdfast.models.alert import Alert, Incident, IncidentState
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from holdfast.models.wait import Wait
from holdfast.storage.ledger.columns import columns, models
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.incidents import add_alerts, incident_of, incident_row
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.schema import ActionRow, IncidentRow, WaitRow

AGAIN = "again"
"""Kind of the action that records why an incident was taken up again."""


class Waits(Connection):
    """The next attempt of every incident that needs a human, or something that only time brings."""

    def put_wait(self, wait: Wait) -> None:
        """Write it down before the incident is closed; one that is there already is replaced."""
        with self._write() as session:
            row = session.get(WaitRow, wait.incident_id, with_for_update=True)
            if row is None:
                row = WaitRow(incident_id=wait.incident_id)
                session.add(row)
            for name, value in wait.model_dump(mode="json").items():
                setattr(row, name, value)
            row.over = False

    def waits(self) -> list[Wait]:
        """Return all current waits: of incidents that are closed and need a human, oldest first."""
        query = (
            columns(WaitRow, Wait)
            .join(IncidentRow, IncidentRow.id == WaitRow.incident_id)
            .where(WaitRow.over.is_(False), IncidentRow.state == IncidentState.NEEDS_HUMAN)
        )
        with self._look() as view:
            return models(view, query.order_by(WaitRow.since), Wait)

    def last_wait(self, incident_id: str) -> Wait | None:
        """Return the incident's newest wait, whether it is over or not."""
        with self._read() as session:
            row = session.get(WaitRow, incident_id)
            return row.to(Wait) if row else None

    def earlier_wait(self, incident_id: str) -> Wait | None:
        """Return the newest wait of an earlier incident of the same job and class, during which the job trained.

        Only since the job was submitted.

        Raises:
            UnknownError: no such incident.
        """
        with self._read() as session:
            mine = incident_row(session, incident_id)
            same = (IncidentRow.job == mine.job) & (IncidentRow.incident_class == mine.incident_class)
            since = job_row(session, mine.job).submitted_at
            before = (IncidentRow.n < mine.n) & (IncidentRow.opened_at >= since)
            query = (
                select(WaitRow)
                .join(IncidentRow, IncidentRow.id == WaitRow.incident_id)
                .where(same, before, WaitRow.runs_on.is_(True))
                .order_by(IncidentRow.n.desc())
                .limit(1)
            )
            row = session.scalars(query).first()
            return row.to(Wait) if row else None

    def end_wait(self, incident_id: str) -> None:
        """End the wait of an incident. Unknown incidents change nothing."""
        with self._write() as session:
            row = session.get(WaitRow, incident_id, with_for_update=True)
            if row is not None:
                row.over = True

    def join_waiting(self, incident_id: str, alerts: Iterable[Alert]) -> None:
        """Add alerts to an incident that waits; those with a key that it already has change nothing.

        Raises:
            UnknownError: no such incident.
            StaleError: it does not wait (any more).
        """
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            wait = session.get(WaitRow, incident_id, with_for_update=True)
            if wait is None or wait.over or row.state is not IncidentState.NEEDS_HUMAN:
                raise StaleError(f"incident {incident_id!r} does not wait for another attempt (any more)")
            add_alerts(session, incident_id, alerts)

    def take_up(self, incident_id: str, why: str) -> Incident:
        """Open the incident again, in its next attempt, with the job recovering: all of it or nothing.

        Raises:
            UnknownError: no such incident.
            StaleError: it does not wait, or a person intervened since: the job runs, was stopped or resubmitted.
        """
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            job = job_row(session, row.job, lock=True)
            wait = session.get(WaitRow, incident_id, with_for_update=True)
            newest = row.n == job.incidents and row.opened_at >= job.submitted_at
            waits = wait is not None and not wait.over and row.state is IncidentState.NEEDS_HUMAN
            if wait is None or not waits or not newest or job.state is not JobState.FAILED:
                raise StaleError(f"incident {incident_id!r} does not wait for another attempt (any more)")
            wait.over = True
            row.state, row.closed_at, row.flow_run_id = IncidentState.OPEN, None, None
            row.attempt += 1
            job.state = JobState.RECOVERING
            before = select(func.count(ActionRow.id)).where(
                ActionRow.incident_id == incident_id, ActionRow.kind == AGAIN
            )
            number = (session.scalar(before) or 0) + 1
            session.add(
                ActionRow(
                    incident_id=incident_id,
                    key=f"{AGAIN}:{number}",
                    kind=AGAIN,
                    intent={"waited_for": wait.missing, "since": wait.since},
                    attempt=row.attempt,
                    state=ActionState.DONE,
                    result={"why": why},
                    begun_at=self._clock.now(),
                    done_at=self._clock.now(),
                )
            )
            session.flush()
            return incident_of(session, row)
