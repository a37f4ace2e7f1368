"""Leases: one playbook run acts on a job, one gateway leads. Held in the ledger, wherever these run."""

from __future__ import annotations

import copy
import time
from typing import Self

from sqlalchemy import Double, cast, func, select
from sqlalchemy.orm import Session

from holdfast.errors import RefusedError, StaleError, UnavailableError
from holdfast.models.alert import IncidentState
from holdfast.models.lease import JobLease, Leader
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.incidents import incident_row, must_be_open
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.schema import IncidentRow, JobLeaseRow, LeaderRow

GATEWAY = "gateway"


class Leases(Connection):
    """Leases of jobs and of the gateway. Times are the database's own on PostgreSQL: hosts' clocks need not agree."""

    @repeat_on_conflict
    def take_job(self, incident_id: str, attempt: int, run: str, holder: str, ttl_s: float) -> JobLease:
        """Let only ``holder`` act on the incident's job, until it releases the lease or does not renew for ``ttl_s``.

        A later attempt takes over from an earlier one, and a run from itself (it was suspended, or its process
        died); any run takes over when the holder's incident is closed or its time is up.

        Raises:
            UnknownError: no such incident.
            StaleError: it is closed, or at a newer attempt.
            RefusedError: another run acts on the job.
        """
        with self._write() as session:
            incident = incident_row(session, incident_id, lock=True)
            # Runs that take the lease of a job take turns.
            job_row(session, incident.job, lock=True)
            must_be_open(incident)
            if attempt < incident.attempt:
                raise StaleError(
                    f"attempt {attempt} of {incident_id} was taken over by attempt {incident.attempt}"
                )
            now = self._now(session)
            row = session.get(JobLeaseRow, incident.job, with_for_update=True)
            free = row is None or row.until <= now or row.holder == holder
            if row is not None and row.incident_id == incident_id:
                free = free or row.run == run or row.attempt < attempt
            elif row is not None:
                free = free or _over(session, row)
            if row is not None and not free:
                raise RefusedError(
                    f"job {incident.job!r}: run {row.run} of {row.incident_id} (attempt {row.attempt}, {row.holder}) "
                    "acts on it; one playbook at a time. Wait until it has ended."
                )
            if row is None:
                row = JobLeaseRow(job=incident.job)
                session.add(row)
            row.incident_id, row.attempt, row.run, row.holder = incident_id, attempt, run, holder
            row.until = now + ttl_s
            session.flush()
            return _job_lease(row, now)

    def renew_job(self, job: str, holder: str, ttl_s: float) -> JobLease:
        """Renew the lease for ``ttl_s`` from now.

        Raises:
            StaleError: another run has it.
        """
        with self._write() as session:
            row = must_hold(session, job, holder)
            now = self._now(session)
            row.until = now + ttl_s
            return _job_lease(row, now)

    def release_job(self, job: str, holder: str) -> None:
        """Release the lease; harmless when another run has it."""
        with self._write() as session:
            row = session.get(JobLeaseRow, job, with_for_update=True)
            if row is not None and row.holder == holder:
                session.delete(row)

    def job_lease(self, job: str) -> JobLease | None:
        """Return the lease of the run that acts on the job, or that did so last and did not release it."""
        with self._read() as session:
            row = session.get(JobLeaseRow, job)
            return _job_lease(row, self._now(session)) if row else None

    def holding(self, incident_id: str, job: str, holder: str) -> Self:
        """Return this ledger for the acts of one run: writes raise ``StaleError`` once another run acts on the job.

        Args:
            incident_id: the run's incident.
            job: the incident's job.
            holder: of the job's lease; empty: nothing is checked.
        """
        if not holder:
            return self
        mine, before = copy.copy(self), self._guard

        def guard(session: Session) -> None:
            if before is not None:
                before(session)
            # In the order of take_job(): two that lock the same rows wait for one another, and never both.
            incident_row(session, incident_id, lock=True)
            job_row(session, job, lock=True)
            must_hold(session, job, holder)

        mine._guard = guard
        return mine

    @repeat_on_conflict
    def lead(self, holder: str, url: str, over: Leader | None = None, name: str = GATEWAY) -> Leader:
        """Become the leader where there is none, or stay it; return the current leader, which may be another holder.

        Args:
            holder: the gateway that asks.
            url: where it is reached.
            over: the leader as it was last seen, without a sign of life for so long that ``holder`` takes its place;
                unless it has given one since.
            name: of what is led.
        """
        with self._session(self._writing) as session:
            row = session.get(LeaderRow, name, with_for_update=True)
            if row is None:
                row = LeaderRow(name=name, holder="", url="", token=0, renewals=0)
                session.add(row)
            silent = over is not None and (row.holder, row.token, row.renewals) == (
                over.holder,
                over.token,
                over.renewals,
            )
            if row.holder != holder and (silent or not row.holder):
                row.holder, row.token = holder, row.token + 1
            if row.holder == holder:
                row.url, row.renewals = url, row.renewals + 1
            session.flush()
            return row.to(Leader)

    def resign(self, holder: str, name: str = GATEWAY) -> None:
        """Let another gateway lead at once; harmless for one that does not lead."""
        with self._session(self._writing) as session:
            row = session.get(LeaderRow, name, with_for_update=True)
            if row is not None and row.holder == holder:
                row.holder = ""

    def write_only_while_leading(self, holder: str, name: str = GATEWAY) -> None:
        """From now on every write through this object fails once another leads: one that was asleep cannot act."""

        # Shared: writers do not wait for one another, but a gateway that wants to lead waits for them.
        query = select(LeaderRow.holder).where(LeaderRow.name == name).with_for_update(read=True)

        def guard(session: Session) -> None:
            leading = session.scalars(query).first()
            if leading != holder:
                raise UnavailableError(f"{name} {holder} does not lead: {leading or 'no gateway'} does")

        self._guard = guard

    def _now(self, session: Session) -> float:
        if self._engine.dialect.name == "postgresql":
            now = session.scalar(select(cast(func.extract("epoch", func.clock_timestamp()), Double)))
            return float(now or time.time())
        return self._clock.now()


def must_hold(session: Session, job: str, holder: str) -> JobLeaseRow:
    """Return the lease's row, locked.

    Raises:
        StaleError: ``holder`` has it no more.
    """
    row = session.get(JobLeaseRow, job, with_for_update=True)
    if row is None or row.holder != holder:
        by = f"run {row.run} ({row.holder}) does" if row else "no run does"
        raise StaleError(f"job {job!r}: {holder} may not act on it any more, {by}. This run must end.")
    return row


def _over(session: Session, row: JobLeaseRow) -> bool:
    owner = session.get(IncidentRow, row.incident_id)
    return owner is None or owner.state is not IncidentState.OPEN


def _job_lease(row: JobLeaseRow, now: float) -> JobLease:
    return JobLease(
        job=row.job,
        incident_id=row.incident_id,
        attempt=row.attempt,
        run=row.run,
        holder=row.holder,
        until=row.until,
        live=row.until > now,
    )
