"""Jobs and their epochs' numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from holdfast.errors import RefusedError, StaleError, UnknownError
from holdfast.models.alert import IncidentState
from holdfast.models.history import StateChange
from holdfast.models.job import ENDED, Job, JobSpec, JobState
from holdfast.models.machine import MachineState
from holdfast.storage.ledger.columns import columns, models
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.one_view import read_once
from holdfast.storage.ledger.schema import IncidentRow, JobRow, MachineRow, StateChangeRow

REPLACED = "the job was submitted again"
_FIELDS = tuple(Job.model_fields)
_ALL: Select[Any] = select(JobRow.name, *(getattr(JobRow, field) for field in _FIELDS)).order_by(
    JobRow.submitted_at, JobRow.name
)


class _Look(NamedTuple):
    """A job as it was read, and what was read."""

    values: list[Any]
    job: Job


class Jobs(Connection):
    """Jobs, their states, and the counter that fences the generations of each."""

    _looked_at: Mapping[str, _Look] = MappingProxyType({})
    """All jobs at the last look; replaced as a whole, since several threads look."""

    @repeat_on_conflict
    def add_job(self, spec: JobSpec, code_version: str) -> Job:
        """Record a submitted job: ``paused``, without machines, until it is launched.

        A job of that name that has ended is replaced; its epochs go on counting, so that whatever is left of
        the old one stays fenced. Its open incidents are dismissed: their playbooks would act on the new one.

        Raises:
            RefusedError: a job of that name has not ended.
        """
        with self._write() as session:
            row = session.get(JobRow, spec.name, with_for_update=True)
            if row is not None and row.state not in ENDED:
                raise RefusedError(
                    f"job {spec.name!r} is {row.state}: it must be stopped, failed or done before a job of "
                    f"that name is submitted. Stop it (`holdfast stop {spec.name}`), send a code update, or "
                    "choose another name."
                )
            if row is None:
                row = JobRow(name=spec.name, epoch=0, incidents=0)
                session.add(row)
            row.spec = spec.model_dump(mode="json")
            # Not a change that is waited for: the job's time begins with its first epoch.
            row.state = JobState.PAUSED
            row.code_version = code_version
            row.machines = []
            row.submitted_at = self._clock.now()
            row.done_at = None
            row.submitted_epoch = row.epoch
            session.execute(
                update(IncidentRow)
                .where(IncidentRow.job == spec.name, IncidentRow.state == IncidentState.OPEN)
                .values(state=IncidentState.DISMISSED, summary=REPLACED, closed_at=row.submitted_at)
            )
            return row.to(Job)

    @read_once
    def job(self, name: str) -> Job:
        """Return the job called ``name``.

        Raises:
            UnknownError: there is none; the message lists those there are.
        """
        with self._look() as view:
            found = models(view, columns(JobRow, Job, "name"), Job, {"name": name})
            if not found:
                raise _no_job(view, name)
        return found[0]

    def jobs(self) -> list[Job]:
        """Return all jobs, in order of submission.

        Those whose row is as it was at the last look are the same objects: a ledger of years has thousands of them, and
        the gateway looks twice a second.
        """
        with self._look() as view:
            rows = view.execute(_ALL).tuples().all()
        before, known = self._looked_at, dict[str, _Look]()
        for name, *values in rows:
            look = before.get(name)
            if look is None or look.values != values:
                look = _Look(values, Job.model_validate(dict(zip(_FIELDS, values, strict=True))))
            known[name] = look
        self._looked_at = known
        return [look.job for look in known.values()]

    def set_job(
        self,
        name: str,
        *,
        state: JobState | None = None,
        code_version: str | None = None,
        machines: Sequence[str] | None = None,
        spec: JobSpec | None = None,
        done_at: float | None = None,
        unless: JobState | None = None,
    ) -> Job:
        """Change the given fields. A job that becomes ``done`` gets ``done_at`` now, unless it is given.

        A job in the state ``unless`` stays as it is. One that runs again has no end any more.

        Raises:
            UnknownError: no such job.
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            if row.state is unless:
                return row.to(Job)
            if state is not None:
                _note(session, row, state, self._clock.now())
            if code_version is not None:
                row.code_version = code_version
            if machines is not None:
                row.machines = list(machines)
            if spec is not None:
                row.spec = spec.model_dump(mode="json")
            if done_at is not None:
                row.done_at = done_at
            elif state is JobState.DONE and row.done_at is None:
                row.done_at = self._clock.now()
            elif state is not None and state not in ENDED:
                row.done_at = None
            return row.to(Job)

    def set_held(self, name: str, epoch: int, *, held: bool) -> Job:
        """Record that the ranks of ``epoch`` are held for a person, or go on; all else about the job stays.

        Raises:
            UnknownError: no such job.
            RefusedError: it neither trains nor holds any more, or not in this epoch: it stays as it is.
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            if row.epoch != epoch or row.state not in (JobState.RUNNING, JobState.PAUSED):
                raise RefusedError(
                    f"job {name} is {row.state} (epoch {row.epoch}) by now: it is not "
                    f"{'held' if held else 'let go'} in epoch {epoch}"
                )
            _note(session, row, JobState.PAUSED if held else JobState.RUNNING, self._clock.now())
            return row.to(Job)

    def set_running(self, name: str, epoch: int, ended_at: float | None) -> Job:
        """Record that the ranks of ``epoch`` run, which a person had started.

        Args:
            name: the job's.
            epoch: the one that was started.
            ended_at: the job's ``done_at`` when the start began: a job that had ended may be started again.

        Raises:
            UnknownError: no such job.
            StaleError: it was stopped since, another epoch was begun, or a machine of it was given back by an earlier
                stop; it stays as it is.
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            if row.epoch != epoch or (row.state in ENDED and row.done_at != ended_at):
                raise StaleError(
                    f"job {name!r} is {row.state} (epoch {row.epoch}) by now: epoch {epoch} does not run"
                )
            # In the order of give_back(), which changes the machines of an ended job under its row's lock.
            in_use = MachineRow.state.in_((MachineState.STANDBY, MachineState.ACTIVE))
            others = select(MachineRow.name).where(in_use, MachineRow.job.is_distinct_from(name))
            if left := {*row.machines}.intersection(session.scalars(others)):
                raise StaleError(
                    f"job {name!r}: {min(left)} does not serve it any more: epoch {epoch} does not run. Start it again"
                )
            _note(session, row, JobState.RUNNING, self._clock.now())
            row.done_at = None
            return row.to(Job)

    def scale_role(self, name: str, role: str, replicas: int) -> Job:
        """Change the replicas of a role and nothing else: a playbook may change the job's size meanwhile.

        Raises:
            UnknownError: no such job.
            ValueError: no such role.
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            row.spec = JobSpec.model_validate(row.spec).with_role(role, replicas).model_dump(mode="json")
            return row.to(Job)

    def set_size(self, name: str, machines: Sequence[str], *, wanted: bool = False) -> Job:
        """Give the job these machines, and a spec of their number; all else stays: a role may be scaled meanwhile.

        ``wanted`` is as in :meth:`.JobSpec.resized`.

        Raises:
            UnknownError: no such job.
            ValueError: the job cannot have so many.
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            spec = JobSpec.model_validate(row.spec)
            if spec.elastic is not None or len(machines) != spec.machines:
                row.spec = spec.resized(len(machines), wanted=wanted).model_dump(mode="json")
            row.machines = list(machines)
            return row.to(Job)

    def want_size(self, name: str, machines: int) -> Job:
        """Have an elastic job that has so many machines keep this size; one that has another by now stays as it is.

        Raises:
            UnknownError: no such job.
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            spec = JobSpec.model_validate(row.spec)
            if spec.elastic is not None and spec.machines == machines:
                row.spec = spec.resized(machines, wanted=True).model_dump(mode="json")
            return row.to(Job)

    def was_launched(self, name: str) -> bool:
        """Return whether an epoch was begun since the job was submitted.

        Raises:
            UnknownError: no such job.
        """
        with self._read() as session:
            row = job_row(session, name)
            return row.epoch > row.submitted_epoch

    def state_changes(self, job: str, since: float = 0.0) -> list[StateChange]:
        """Return every state that the job entered after ``since`` (Unix seconds), oldest first."""
        query = select(StateChangeRow).where(StateChangeRow.job == job, StateChangeRow.at >= since)
        with self._read() as session:
            return [row.to(StateChange) for row in session.scalars(query.order_by(StateChangeRow.id))]

    def next_epoch(self, name: str, *, unless_ended: bool = False) -> int:
        """Take the next epoch number: no other caller gets it.

        Raises:
            UnknownError: no such job.
            StaleError: it has ended, and the caller only goes on with a job that has not (``unless_ended``).
        """
        with self._write() as session:
            row = job_row(session, name, lock=True)
            if unless_ended and row.state in ENDED:
                raise StaleError(f"job {name!r} is {row.state}: no epoch of it is started")
            row.epoch += 1
            return row.epoch


def _note(session: Session, row: JobRow, state: JobState, at: float) -> None:
    if row.state is not state:
        session.add(StateChangeRow(job=row.name, state=state, at=at))
    row.state = state


def job_row(session: Session, name: str, lock: bool = False) -> JobRow:
    """Return the job's row, locked if it is to be changed.

    Raises:
        UnknownError: no such job.
    """
    row = session.get(JobRow, name, with_for_update=lock or None)
    if row is None:
        raise _no_job(session, name)
    return row


def _no_job(view: SqlConnection | Session, name: str) -> UnknownError:
    known = ", ".join(view.scalars(select(JobRow.name).order_by(JobRow.name).limit(10))) or "none"
    return UnknownError(f"no job {name!r}. Jobs: {known}. Submit it with `holdfast submit JOB.yaml`.")
