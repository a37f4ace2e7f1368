"""The standby pool's target size, and the history that it is estimated from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import or_, select

from holdfast.models.alert import IncidentClass
from holdfast.models.history import ActionState, Epoch, Offence, Pool, machine_of
from holdfast.storage.ledger.columns import columns, models
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.schema import ActionRow, EpochRow, IncidentRow, JobRow, PoolGroupRow, PoolRow


class Pools(Connection):
    """How many standbys there should be, and how often machines fail."""

    def set_pool(self, target: int, reason: str, groups: Mapping[str, int] | None = None) -> Pool:
        """Set the target size, with the reasoning behind it, and its parts by group of machines."""
        with self._write() as session:
            row = PoolRow(target=target, reason=reason, at=self._clock.now())
            session.add(row)
            session.flush()
            for name, part in (groups or {}).items():
                session.add(PoolGroupRow(pool_id=row.id, name=name, target=part))
            return _pool(row, groups or {})

    def pool(self) -> Pool:
        """Return the target size; 0 before it was ever set."""
        with self._read() as session:
            row = session.scalars(select(PoolRow).order_by(PoolRow.id.desc()).limit(1)).first()
            if row is None:
                return Pool(target=0, reason="never set", at=0.0)
            parts = session.scalars(select(PoolGroupRow).where(PoolGroupRow.pool_id == row.id))
            return _pool(row, {part.name: part.target for part in parts})

    def epochs_after(self, since: float) -> list[Epoch]:
        """Return the epochs of all jobs that are open, or were after ``since`` (Unix seconds)."""
        query = columns(EpochRow, Epoch).where(or_(EpochRow.closed_at.is_(None), EpochRow.closed_at > since))
        with self._look() as view:
            return models(view, query, Epoch)

    def skipped_steps(self, job: str) -> tuple[int, ...]:
        """Return the steps of the job, since it was submitted, whose data is passed over; in their order."""
        query = (
            select(ActionRow.result)
            .join(IncidentRow, IncidentRow.id == ActionRow.incident_id)
            .join(JobRow, JobRow.name == IncidentRow.job)
            .where(
                IncidentRow.job == job,
                ActionRow.kind == "skip",
                ActionRow.state == ActionState.DONE,
                ActionRow.begun_at >= JobRow.submitted_at,
            )
        )
        with self._read() as session:
            return tuple(sorted({int(result["step"]) for result in session.scalars(query) if result}))

    def offences(self, since: float) -> list[Offence]:
        """Return every eviction after ``since`` (Unix seconds), of any job, oldest first: the machines' record."""
        query = select(ActionRow.key, ActionRow.done_at).where(
            ActionRow.kind == "evict", ActionRow.state == ActionState.DONE, ActionRow.done_at > since
        )
        with self._read() as session:
            return [
                Offence(machine=machine_of(key), at=at)
                for key, at in session.execute(query.order_by(ActionRow.done_at))
            ]

    def failures_by_machine(self, since: float) -> dict[str, int]:
        """Return how often each machine was evicted after ``since`` (Unix seconds) because it itself failed.

        Counts evictions of incidents of class ``machine_fault`` and of the machine that another incident
        names; healthy machines that an over-eviction took along do not count.
        """
        query = (
            select(ActionRow.key, IncidentRow.machine, IncidentRow.incident_class)
            .join(IncidentRow, IncidentRow.id == ActionRow.incident_id)
            .where(ActionRow.kind == "evict", ActionRow.state == ActionState.DONE, ActionRow.done_at > since)
        )
        with self._read() as session:
            return dict(
                Counter(
                    machine_of(key)
                    for key, machine, kind in session.execute(query)
                    if kind is IncidentClass.MACHINE_FAULT or machine_of(key) == machine
                )
            )


def _pool(row: PoolRow, groups: Mapping[str, int]) -> Pool:
    return Pool(target=row.target, reason=row.reason, at=row.at, groups=dict(groups))
