"""Versions of a job's code."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from holdfast.errors import UnknownError
from holdfast.models.history import CodeVersion
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import VersionRow


class Versions(Connection):
    """Which code a job may run, in the order in which it came, and which of it proved bad."""

    @repeat_on_conflict
    def add_version(self, job: str, version: str, key: str, note: str, by: str = "") -> CodeVersion:
        """Record a stored version. One already known is returned unchanged (a bad one stays bad)."""
        with self._write() as session:
            row = _find(session, job, version)
            if row is None:
                row = VersionRow(
                    job=job, version=version, key=key, note=note, by=by, created_at=self._clock.now()
                )
                session.add(row)
                session.flush()
            return row.to(CodeVersion)

    def versions(self, job: str) -> list[CodeVersion]:
        """Return all versions of the job's code, oldest first."""
        with self._read() as session:
            rows = session.scalars(select(VersionRow).where(VersionRow.job == job).order_by(VersionRow.id))
            return [row.to(CodeVersion) for row in rows]

    def mark_bad(self, job: str, version: str, reason: str) -> CodeVersion:
        """Keep a version from being chosen by a rollback. The first reason is kept.

        Raises:
            UnknownError: no such version.
        """
        with self._write() as session:
            row = _find(session, job, version)
            if row is None:
                raise UnknownError(f"job {job!r} has no code version {version!r}.")
            if not row.bad:
                row.bad, row.bad_reason = True, reason
            return row.to(CodeVersion)


def _find(session: Session, job: str, version: str) -> VersionRow | None:
    query = select(VersionRow).where(VersionRow.job == job, VersionRow.version == version)
    return session.scalars(query.with_for_update()).first()
