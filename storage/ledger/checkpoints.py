"""Checkpoints in S3, as far as the ledger knows them; the manifests there are the truth."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from holdfast.models.checkpoint import RemoteCheckpoint, Suspicion
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import CheckpointRow, JobRow, SuspicionRow


class Checkpoints(Connection):
    """Which checkpoints were completed, and which of them must not be trusted."""

    def refuse_checkpoint(self, checkpoint: RemoteCheckpoint, reason: str) -> None:
        """Mark one checkpoint suspect whose bytes were found damaged; those before and after it are not affected."""
        with self._write() as session:
            row = session.get(CheckpointRow, (checkpoint.job, checkpoint.step, checkpoint.epoch))
            if row is not None and not row.suspect:
                row.suspect, row.suspect_reason = True, reason

    @repeat_on_conflict
    def record_checkpoint(self, checkpoint: RemoteCheckpoint) -> RemoteCheckpoint:
        """Record a checkpoint whose manifest was written. One already known is left unchanged.

        A checkpoint of steps that were marked suspect while its upload was under way is suspect as well.
        """
        with self._write() as session:
            row = session.get(CheckpointRow, (checkpoint.job, checkpoint.step, checkpoint.epoch))
            if row is None:
                row = CheckpointRow(**checkpoint.model_dump())
                if not row.suspect and (reason := _suspicion(session, checkpoint)):
                    row.suspect, row.suspect_reason = True, reason
                session.add(row)
                session.flush()
            return row.to(RemoteCheckpoint)

    def checkpoints(self, job: str, include_suspect: bool = True) -> list[RemoteCheckpoint]:
        """Return the job's checkpoints, newest step first."""
        query = select(CheckpointRow).where(CheckpointRow.job == job)
        if not include_suspect:
            query = query.where(CheckpointRow.suspect.is_(False))
        newest = (CheckpointRow.step.desc(), CheckpointRow.epoch.desc())
        with self._read() as session:
            return [row.to(RemoteCheckpoint) for row in session.scalars(query.order_by(*newest))]

    def forget_checkpoints(self, job: str, keys: Collection[str]) -> None:
        """Forget checkpoints of ``job`` that were removed from S3; unknown ones are no error."""
        gone = (CheckpointRow.job == job) & CheckpointRow.key.in_(keys)
        with self._write() as session:
            session.execute(delete(CheckpointRow).where(gone))

    def suspicions(self, job: str) -> list[Suspicion]:
        """Return which states of the job must not be restored, wherever they lie; oldest first."""
        query = select(SuspicionRow).where(SuspicionRow.job == job).order_by(SuspicionRow.id)
        with self._read() as session:
            return [row.to(Suspicion) for row in session.scalars(query)]

    def mark_suspect(self, job: str, from_step: int, reason: str) -> list[RemoteCheckpoint]:
        """Mark every checkpoint of ``from_step`` or later suspect; return all of those, newest first.

        Steps that later epochs repeat are not affected, nor are those of an earlier submission under the job's name.
        The first reason of a checkpoint stands. May be repeated.
        """
        found = (CheckpointRow.job == job) & (CheckpointRow.step >= from_step)
        newest = (CheckpointRow.step.desc(), CheckpointRow.epoch.desc())
        with self._write() as session:
            owner = session.get(JobRow, job)
            to_epoch = owner.epoch if owner else 0
            found &= CheckpointRow.epoch > (owner.submitted_epoch if owner else 0)
            suspicion = {"job": job, "from_step": from_step, "to_epoch": to_epoch, "reason": reason}
            if session.scalars(select(SuspicionRow).filter_by(**suspicion)).first() is None:
                session.add(SuspicionRow(**suspicion))
            rows = session.scalars(select(CheckpointRow).where(found).order_by(*newest)).all()
            for row in rows:
                if not row.suspect:
                    row.suspect, row.suspect_reason = True, reason
            return [row.to(RemoteCheckpoint) for row in rows]


def _suspicion(session: Session, checkpoint: RemoteCheckpoint) -> str | None:
    query = select(SuspicionRow.reason).where(
        SuspicionRow.job == checkpoint.job,
        SuspicionRow.from_step <= checkpoint.step,
        SuspicionRow.to_epoch >= checkpoint.epoch,
    )
    owner = session.get(JobRow, checkpoint.job)
    if owner is not None and checkpoint.epoch <= owner.submitted_epoch:
        # An upload of an earlier submission: what was found out since is about other states.
        query = query.where(SuspicionRow.to_epoch <= owner.submitted_epoch)
    return session.scalars(query.order_by(SuspicionRow.id).limit(1)).first()
