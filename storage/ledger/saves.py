"""Whether a job ever saved a state, which a start from zero would discard."""

from __future__ import annotations

from sqlalchemy import exists, select

from holdfast.models.start_from import StartFrom
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.schema import CheckpointRow, EpochRow, MetaRow


class Saves(Connection):
    """Saves in memory leave no trace here but this; those in S3 have their own table."""

    @repeat_on_conflict
    def note_saved(self, job: str, epoch: int) -> None:
        """Remember that ranks of ``epoch`` saved a state, wherever; older epochs change nothing."""
        with self._write() as session:
            row = session.get(MetaRow, _key(job), with_for_update=True)
            if row is None:
                session.add(MetaRow(key=_key(job), value=str(epoch)))
                session.flush()
            else:
                row.value = str(max(epoch, int(row.value)))

    def ever_saved(self, job: str) -> bool:
        """Return whether the job saved a state since it was last submitted: reported by its agents, restored, or in S3.

        Raises:
            UnknownError: no such job.
        """
        with self._read() as session:
            row = job_row(session, job)
            since, source = row.submitted_epoch, row.spec.get("start_from")
            begun_at = StartFrom.model_validate(source).first_step if source else 0
            reported = session.get(MetaRow, _key(job))
            if reported is not None and int(reported.value) > since:
                return True
            restored = (EpochRow.job == job) & (EpochRow.epoch > since) & (EpochRow.start_step > begun_at)
            in_s3 = (CheckpointRow.job == job) & (CheckpointRow.epoch > since)
            return bool(session.scalar(select(exists().where(restored) | exists().where(in_s3))))


def _key(job: str) -> str:
    return f"saved:{job}"
