"""Code updates that wait for the next restart of their job (lazy hot updates)."""

from __future__ import annotations

from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import MetaRow


class PendingUpdates(Connection):
    """At most one waiting version per job: a newer one replaces an older one."""

    @repeat_on_conflict
    def set_pending_version(self, job: str, version: str | None) -> None:
        """Let ``version`` wait for the job's next restart; None: nothing waits any more."""
        with self._write() as session:
            row = session.get(MetaRow, _key(job), with_for_update=True)
            if version is None:
                if row is not None:
                    session.delete(row)
            elif row is None:
                session.add(MetaRow(key=_key(job), value=version))
                session.flush()
            else:
                row.value = version

    def pending_version(self, job: str) -> str | None:
        """Return the version that waits for the job's next restart, if any."""
        with self._read() as session:
            row = session.get(MetaRow, _key(job))
            return row.value if row else None


def _key(job: str) -> str:
    return f"pending-version:{job}"
