"""Epochs: each generation of a job's ranks, and the steps it made."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from holdfast.errors import UnknownError
from holdfast.models.history import Epoch
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import EpochRow, JobRow


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
        """Record that an epoch starts after ``start_step``. One already recorded is returned as it stands.

        Older epochs of the job that nobody closed end here: two never run at once.
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

    def mark(self, job: str, epoch: int, step: int, at: float, steps: int = 1) -> None:
        """Note that ``step`` was complete at ``at``, the last of ``steps`` reported together.

        Reports that are older than what is known change nothing.

        Raises:
            UnknownError: no such epoch.
        """
        with self._write() as session:
            row = _epoch_row(session, job, epoch)
            if row.first_step is None or row.first_step_at is None:
                row.first_step, row.first_step_at = step - steps + 1, at
            if row.last_step is None or step > row.last_step:
                row.last_step, row.last_step_at = step, at

    def close_epoch(self, job: str, epoch: int, reason: str, at: float | None = None) -> None:
        """Record that an epoch ended, and why. The first reason stands.

        Raises:
            UnknownError: no such epoch.
        """
        with self._write() as session:
            row = _epoch_row(session, job, epoch)
            if row.closed_at is None:
                row.closed_at = self._clock.now() if at is None else at
                row.close_reason = reason

    def epochs(self, job: str) -> list[Epoch]:
        """All epochs of a job, oldest first."""
        with self._read() as session:
            rows = session.scalars(select(EpochRow).where(EpochRow.job == job).order_by(EpochRow.epoch))
            return [row.to(Epoch) for row in rows]

    def max_step(self, job: str) -> int:
        """The furthest step that any epoch of the job did or restored since it was last submitted; else 0."""
        furthest = func.max(func.coalesce(EpochRow.last_step, EpochRow.start_step))
        query = (
            select(furthest)
            .join(JobRow, JobRow.name == EpochRow.job)
            .where(EpochRow.job == job, EpochRow.epoch > JobRow.submitted_epoch)
        )
        with self._read() as session:
            return session.scalar(query) or 0


def _epoch_row(session: Session, job: str, epoch: int) -> EpochRow:
    row = session.get(EpochRow, (job, epoch), with_for_update=True)
    if row is None:
        raise UnknownError(f"job {job!r} has no epoch {epoch} in the ledger.")
    return row
