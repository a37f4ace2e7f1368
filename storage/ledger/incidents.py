"""Incidents: what playbooks work on, and the attempt number that fences their runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from holdfast.errors import StaleError, UnknownError
from holdfast.models.alert import Alert, Classification, Incident, IncidentClass, IncidentState, RecordedClass
from holdfast.models.job import JobState
from holdfast.storage.ledger.columns import columns
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.one_view import read_once
from holdfast.storage.ledger.schema import IncidentAlertRow, IncidentRow, JobRow

_ALERTS_APART = ("alerts",)
"""Fields of an incident that are in another table."""
MAX_ALERTS_PER_EPOCH = 512
"""Alerts that an incident keeps of one epoch; an alert storm of a big job ends up in the alert log only."""


class IncidentChanges(TypedDict, total=False):
    """The fields of an incident that may be changed; its attempt grows by :meth:`Incidents.next_attempt` only."""

    incident_class: RecordedClass
    state: IncidentState
    epoch: int
    machine: str | None
    rank: int | None
    confidence: float
    reasons: Sequence[str]
    injected_at: float | None
    detected_at: float
    first_task_at: float | None
    recovered_at: float | None
    closed_at: float | None
    flow_run_id: str | None
    last_good_step: int | None
    summary: str


class Incidents(Connection):
    """Which faults hit which job, and how far each is from being over."""

    def open_incident(  # noqa: PLR0917
        self,
        job: str,
        classification: Classification,
        epoch: int,
        alerts: Iterable[Alert],
        detected_at: float,
        injected_at: float | None = None,
        *,
        flow_run_id: str | None = None,
        last_good_step: int | None = None,
        asks: str = "",
        instead_of: tuple[str, str] | None = None,
    ) -> Incident:
        """Open the job's next incident, called ``<job>-<n>``; with ``flow_run_id``, one that has its run already.

        Args:
            job: name of the job.
            classification: class, machine, reasons.
            epoch: of the job.
            alerts: those that it was opened for.
            detected_at: when its first alert was heard (Unix seconds).
            injected_at: when the fault was injected, if it was.
            flow_run_id: the run that works on it.
            last_good_step: the newest step before it.
            asks: it needs a person from the beginning, with this summary; no playbook works on it.
            instead_of: an open incident that is dismissed for it, and the summary of that one.

        Raises:
            UnknownError: no such job or incident.
            StaleError: the incident to dismiss is closed.
        """
        with self._write() as session:
            if instead_of is not None:
                gone = incident_row(session, instead_of[0], lock=True)
                must_be_open(gone)
                gone.state, gone.summary = IncidentState.DISMISSED, instead_of[1]
                gone.closed_at = self._clock.now()
            owner = job_row(session, job, lock=True)
            owner.incidents += 1
            row = IncidentRow(
                id=f"{job}-{owner.incidents}",
                job=job,
                n=owner.incidents,
                incident_class=classification.incident_class,
                state=IncidentState.NEEDS_HUMAN if asks else IncidentState.OPEN,
                epoch=epoch,
                attempt=1,
                machine=classification.machine,
                rank=classification.rank,
                confidence=classification.confidence,
                reasons=list(classification.reasons),
                injected_at=injected_at,
                detected_at=detected_at,
                opened_at=self._clock.now(),
                flow_run_id=flow_run_id,
                last_good_step=last_good_step,
                summary=asks,
            )
            session.add(row)
            session.flush()
            add_alerts(session, row.id, alerts)
            return incident_of(session, row)

    @read_once
    def incident(self, incident_id: str, *, evidence: bool = True) -> Incident:
        """Return the incident; without ``evidence`` it carries no alerts.

        Raises:
            UnknownError: no such incident.
        """
        query = columns(IncidentRow, Incident, "id", without=_ALERTS_APART)
        with self._look() as view:
            found = _incidents(view, query, {"id": incident_id}, evidence=evidence)
        if not found:
            raise _no_incident(incident_id)
        return found[0]

    @read_once
    def incidents(
        self,
        job: str | None = None,
        state: IncidentState | None = None,
        limit: int | None = None,
        *,
        incident_class: IncidentClass | None = None,
        machine: str | None = None,
        evidence: bool = True,
    ) -> list[Incident]:
        """Return incidents, newest first; without ``evidence`` they carry no alerts, which are most of what is read."""
        asked = _given(job=job, state=state, incident_class=incident_class, machine=machine)
        with self._look() as view:
            return _incidents(view, _newest_first(tuple(asked), limit), asked, evidence=evidence)

    def incident_counts(
        self, job: str | None = None, machine: str | None = None
    ) -> dict[tuple[IncidentClass, IncidentState], int]:
        """Count all incidents, or those of a job or machine, by class and state."""
        query = select(IncidentRow.incident_class, IncidentRow.state, func.count())
        for column, value in ((IncidentRow.job, job), (IncidentRow.machine, machine)):
            query = query if value is None else query.where(column == value)
        with self._look() as view:
            rows = view.execute(query.group_by(IncidentRow.incident_class, IncidentRow.state)).all()
        return {(incident_class, state): count for incident_class, state, count in rows}

    def acting(self, job: str, *, evidence: bool = True) -> Incident | None:
        """Return the oldest open incident of the job: only its playbook may act on the job.

        Without ``evidence`` it carries no alerts.
        """
        with self._look() as view:
            found = _incidents(view, _oldest_open(), {"job": job}, evidence=evidence)
        return found[0] if found else None

    def trains_unheld(self, job: str, epoch: int) -> bool:
        """Return whether the job runs in ``epoch``, and neither a person nor a playbook holds it: in one look."""
        acting = select(IncidentRow.id).where(IncidentRow.job == job, IncidentRow.state == IncidentState.OPEN)
        query = select(JobRow.name).where(
            JobRow.name == job, JobRow.epoch == epoch, JobRow.state == JobState.RUNNING, ~acting.exists()
        )
        with self._read() as session:
            return session.scalar(query) is not None

    def set_incident(self, incident_id: str, **changes: Unpack[IncidentChanges]) -> Incident:
        """Change the given fields. An incident that is no longer open gets ``closed_at`` now, unless it is given.

        Raises:
            UnknownError: no such incident.
        """
        if wrong := changes.keys() - IncidentChanges.__annotations__.keys():
            raise TypeError(f"set_incident() got unexpected fields {sorted(wrong)}")
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            for field, value in changes.items():
                setattr(row, field, list(changes["reasons"]) if field == "reasons" else value)
            if row.state is IncidentState.OPEN and "state" in changes:
                row.closed_at = None
            elif row.state is not IncidentState.OPEN and row.closed_at is None:
                row.closed_at = self._clock.now()
            return incident_of(session, row)

    def end_incident(
        self, incident_id: str, state: IncidentState, summary: str, at: float, *, fails: bool = False
    ) -> Incident:
        """Close an open incident, by the one that works on it; ``fails``: its job has failed. All of it or nothing.

        Raises:
            UnknownError: no such incident.
            StaleError: it was closed meanwhile: what was decided about it stays.
        """
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            must_be_open(row)
            if fails:
                _fail(session, row.job)
            row.state, row.summary, row.closed_at = state, summary, at
            return incident_of(session, row)

    def give_up(self, incident_id: str, summary: str, at: float | None = None) -> Incident:
        """Leave it to a human: the incident needs one, and its job has failed. Both or neither.

        Raises:
            UnknownError: no such incident.
        """
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            _fail(session, row.job)
            row.state, row.summary = IncidentState.NEEDS_HUMAN, summary
            row.closed_at = row.closed_at or at or self._clock.now()
            return incident_of(session, row)

    def join(self, incident_id: str, alerts: Iterable[Alert]) -> None:
        """Add alerts to an open incident; those with a key that it already has change nothing.

        Raises:
            UnknownError: no such incident.
            StaleError: it is closed; the alerts belong to another one.
        """
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            must_be_open(row)
            add_alerts(session, incident_id, alerts)

    def next_attempt(self, incident_id: str, expected: int) -> Incident:
        """Start the attempt after ``expected``; from now on runs of older attempts cannot act.

        Raises:
            UnknownError: no such incident.
            StaleError: its attempt is not ``expected`` (another run was faster), or it is closed.
        """
        with self._write() as session:
            row = incident_row(session, incident_id, lock=True)
            must_be_open(row)
            if row.attempt != expected:
                raise StaleError(
                    f"incident {incident_id!r} is at attempt {row.attempt}, not {expected}: read it again."
                )
            row.attempt += 1
            return incident_of(session, row)


def _fail(session: Session, job: str) -> None:
    """Note that a job has failed; one that a person stopped meanwhile, or that is done, is not started again."""
    row = job_row(session, job, lock=True)
    if row.state not in (JobState.STOPPED, JobState.DONE):
        row.state = JobState.FAILED


def incident_row(session: Session, incident_id: str, lock: bool = False) -> IncidentRow:
    """Return the incident's row, locked if it, its alerts or its actions are to be changed.

    Raises:
        UnknownError: no such incident.
    """
    row = session.get(IncidentRow, incident_id, with_for_update=lock or None)
    if row is None:
        raise _no_incident(incident_id)
    return row


def _no_incident(incident_id: str) -> UnknownError:
    return UnknownError(f"no incident {incident_id!r}. `holdfast incidents` lists those there are.")


def must_be_open(row: IncidentRow) -> None:
    """Refuse to work on an incident that is over.

    Raises:
        StaleError: it is not open.
    """
    if row.state is not IncidentState.OPEN:
        raise StaleError(f"incident {row.id!r} is {row.state}, not open: nothing is done for it any more.")


def incident_of(session: Session, row: IncidentRow) -> Incident:
    """Return the row as an incident."""
    fields = {name: getattr(row, name) for name in Incident.model_fields if name != "alerts"}
    return Incident.model_validate({**fields, "alerts": _alerts(session, row.id)})


def _incidents(
    view: SqlConnection, query: Select[Any], values: Mapping[str, Any], *, evidence: bool
) -> list[Incident]:
    found = []
    for row in view.execute(query, values).mappings().all():
        alerts = _alerts(view, row["id"]) if evidence else ()
        found.append(Incident.model_validate({**row, "alerts": alerts}))
    return found


def _given(**filters: object) -> dict[str, object]:
    return {name: value for name, value in filters.items() if value is not None}


@functools.cache
def _newest_first(keys: tuple[str, ...], limit: int | None) -> Select[Any]:
    query = columns(IncidentRow, Incident, *keys, without=_ALERTS_APART)
    return query.order_by(IncidentRow.opened_at.desc(), IncidentRow.n.desc()).limit(limit)


@functools.cache
def _oldest_open() -> Select[Any]:
    query = columns(IncidentRow, Incident, "job", without=_ALERTS_APART, by=("n",))
    return query.where(IncidentRow.state == IncidentState.OPEN).limit(1)


def _alerts(view: SqlConnection | Session, incident_id: str) -> Sequence[Any]:
    return view.scalars(_ALERTS, {"incident_id": incident_id}).all()


_ALERTS = (
    select(IncidentAlertRow.body)
    .where(IncidentAlertRow.incident_id == bindparam("incident_id"))
    .order_by(IncidentAlertRow.id)
)


def add_alerts(session: Session, incident_id: str, alerts: Iterable[Alert]) -> None:
    """Add alerts to an incident, as many of an epoch as it may have; those with a key that it has change nothing."""
    for alert in {alert.key: alert for alert in alerts}.values():
        same_epoch = select(func.count(IncidentAlertRow.id)).where(
            IncidentAlertRow.incident_id == incident_id,
            IncidentAlertRow.epoch.is_not_distinct_from(alert.epoch),
        )
        same = select(IncidentAlertRow.id).where(
            IncidentAlertRow.incident_id == incident_id, IncidentAlertRow.key == alert.key
        )
        if session.scalar(same) is None and (session.scalar(same_epoch) or 0) < MAX_ALERTS_PER_EPOCH:
            session.add(
                IncidentAlertRow(
                    incident_id=incident_id,
                    key=alert.key,
                    epoch=alert.epoch,
                    body=alert.model_dump(include=set(Alert.model_fields)),
                )
            )
            session.flush()
