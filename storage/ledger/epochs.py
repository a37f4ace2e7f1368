"""Epochs: each generation of a job's ranks, and the steps it made."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, bindparam, func, select, update
from sqlalchemy.orm import Session

from holdfast.errors import UnknownError
from holdfast.models.history import Epoch, Stretch
from holdfast.storage.ledger.columns import columns
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.one_view import read_once
from holdfast.storage.ledger.schema import EpochRow, JobRow, StretchRow

STRETCH_S = 300.0
"""The most that a stretch of steps lasts; within one, steps count as evenly spaced."""
# Built once: each step that a job reports runs them.
_NEWEST = (
    select(StretchRow)
    .where(StretchRow.job == bindparam("job"), StretchRow.epoch == bindparam("epoch"))
    .order_by(StretchRow.id.desc())
    .limit(1)
)
_REACHED = select(func.max(EpochRow.last_step)).where(
    EpochRow.job == bindparam("job"), EpochRow.epoch < bindparam("epoch")
)


class Epochs(Connection):
    """When each generation ran, from which step, on which machines, and how far it came."""

    @repeat_on_conflict
    def open_epoch(  # noqa: PLR0917
        self,
        job: str,
        epoch: int,
        start_step: int,
        code_version: str,
        machines: Sequence[str],
        reason: str,
        incident_id: str | None = None,
        at: float | None = None,
    ) -> Epoch:
        """Record that an epoch starts after ``start_step``. One already recorded is returned unchanged.

        Older epochs of the job that were not closed end here: two never run at once.
        """
        now = self._clock.now() if at is None else at
        older = (EpochRow.job == job) & (EpochRow.epoch < epoch) & EpochRow.closed_at.is_(None)
        with self._write() as session:
            row = session.get(EpochRow, (job, epoch))
            if row is None:
                ended = {"closed_at": now, "close_reason": f"replaced by epoch {epoch}"}
                session.execute(update(EpochRow).where(older).values(ended))
                row = EpochRow(
                    job=job,
                    epoch=epoch,
                    start_step=start_step,
                    code_version=code_version,
                    machines=list(machines),
                    reason=reason,
                    incident_id=incident_id,
                    opened_at=now,
                )
                session.add(row)
                session.flush()
            return row.to(Epoch)

    def mark(  # noqa: PLR0917
        self,
        job: str,
        epoch: int,
        step: int,
        at: float,
        steps: int = 1,
        begun_at: float | None = None,
        stall_s: float = 0.0,
    ) -> None:
        """Note that ``step`` was complete at ``at``, the last of ``steps`` reported together.

        Reports that are older than what is known change nothing; no step is older than its epoch.

        Args:
            job: the job.
            epoch: its epoch that did the steps.
            step: the newest of them.
            at: Unix seconds, of the gateway's clock.
            steps: how many.
            begun_at: when the first of them began, if nothing was noted of this epoch yet.
            stall_s: how long training stood still for checkpoints in them.

        Raises:
            UnknownError: no such epoch.
        """
        with self._write() as session:
            row = _epoch_row(session, job, epoch)
            at = max(at, row.opened_at)
            if row.first_step is None or row.first_step_at is None:
                row.first_step, row.first_step_at = step - steps + 1, at
            if row.last_step is None or step > row.last_step:
                since = row.last_step_at if row.last_step is not None else begun_at
                first = row.first_step if row.last_step is None else row.last_step + 1
                row.last_step, row.last_step_at = step, at
                _stretch(session, row, first, max(row.opened_at, at if since is None else since), stall_s)

    def stretches(self, job: str, since: float = 0.0) -> list[Stretch]:
        """Return the stretches of steps that ended after ``since`` (Unix seconds), oldest first."""
        query = select(StretchRow).where(StretchRow.job == job, StretchRow.ended_at >= since)
        with self._read() as session:
            return [row.to(Stretch) for row in session.scalars(query.order_by(StretchRow.id))]

    def close_epoch(self, job: str, epoch: int, reason: str, at: float | None = None) -> None:
        """Record that an epoch ended, and why. The first reason is kept.

        Raises:
            UnknownError: no such epoch.
        """
        with self._write() as session:
            row = _epoch_row(session, job, epoch)
            if row.closed_at is None:
                row.closed_at = self._clock.now() if at is None else at
                row.close_reason = reason

    @read_once
    def epochs(self, job: str, *, machines: bool = True) -> list[Epoch]:
        """Return all epochs of a job, oldest first.

        Without ``machines`` they name none, which are most of what is read: a job of a thousand machines has hundreds
        of epochs.
        """
        query = columns(EpochRow, Epoch, "job", without=() if machines else ("machines",), by=("epoch",))
        with self._look() as view:
            rows = view.execute(query, {"job": job}).mappings()
            return [Epoch.model_validate({"machines": (), **row}) for row in rows]

    def max_step(self, job: str) -> int:
        """Return the furthest step that any epoch of the job did or restored since it was last submitted; else 0."""
        with self._read() as session:
            row = session.execute(_furthest().where(EpochRow.job == job)).first()
            return row[1] if row else 0

    def max_steps(self) -> dict[str, int]:
        """Return the same of all jobs, by name; those without an epoch since then are left out."""
        with self._read() as session:
            return dict(session.execute(_furthest()).tuples().all())


def _furthest() -> Select[tuple[str, int]]:
    """Select each job's furthest step since it was last submitted."""
    return (
        select(EpochRow.job, func.max(func.coalesce(EpochRow.last_step, EpochRow.start_step)))
        .join(JobRow, JobRow.name == EpochRow.job)
        .where(EpochRow.epoch > JobRow.submitted_epoch)
        .group_by(EpochRow.job)
    )


def _stretch(session: Session, row: EpochRow, first: int | None, begun_at: float, stall_s: float) -> None:
    """Extend the epoch's newest stretch, or begin another: each is short enough to be taken as even."""
    step, at = row.last_step or 0, row.last_step_at or 0.0
    newest = session.scalars(_NEWEST, {"job": row.job, "epoch": row.epoch}).first()
    if newest is not None and at - newest.begun_at <= STRETCH_S and not _new_ground(session, newest, step):
        newest.last_step, newest.ended_at, newest.stall_s = step, at, newest.stall_s + stall_s
        return
    session.add(
        StretchRow(
            job=row.job,
            epoch=row.epoch,
            first_step=first,
            last_step=step,
            begun_at=min(begun_at, at),
            ended_at=at,
            stall_s=stall_s,
        )
    )


def _new_ground(session: Session, newest: StretchRow, step: int) -> bool:
    """Return whether the stretch repeated steps that an older epoch had done, and ``step`` is beyond those."""
    reached = session.scalar(_REACHED, {"job": newest.job, "epoch": newest.epoch}) or 0
    return newest.last_step <= reached < step


def _epoch_row(session: Session, job: str, epoch: int) -> EpochRow:
    row = session.get(EpochRow, (job, epoch), with_for_update=True)
    if row is None:
        raise UnknownError(f"job {job!r} has no epoch {epoch} in the ledger.")
    return row
