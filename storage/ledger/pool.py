"""The standby pool's target size, and the history that it is estimated from."""

from __future__ import annotations

from sqlalchemy import or_, select

from holdfast.models.alert import IncidentClass
from holdfast.models.history import ActionState, Pool
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.schema import ActionRow, EpochRow, IncidentRow, PoolRow

DAY_S = 86_400.0


class Pools(Connection):
    """How many standbys there should be, and how often machines fail."""

    def set_pool(self, target: int, reason: str) -> Pool:
        """Set the target size, with the reasoning behind it."""
        with self._write() as session:
            row = PoolRow(target=target, reason=reason, at=self._clock.now())
            session.add(row)
            return row.to(Pool)

    def pool(self) -> Pool:
        """The target size; 0 before it was ever set."""
        with self._read() as session:
            row = session.scalars(select(PoolRow).order_by(PoolRow.id.desc()).limit(1)).first()
            return row.to(Pool) if row else Pool(target=0, reason="never set", at=0.0)

    def machine_days(self, since: float) -> float:
        """Days that machines spent in jobs after ``since`` (Unix seconds), summed over machines."""
        now = self._clock.now()
        query = select(EpochRow).where(or_(EpochRow.closed_at.is_(None), EpochRow.closed_at > since))
        with self._read() as session:
            seconds = sum(
                len(row.machines) * max(0.0, (row.closed_at or now) - max(row.opened_at, since))
                for row in session.scalars(query)
            )
        return seconds / DAY_S

    def evictions(self, since: float) -> list[float]:
        """When machines were evicted after ``since``, oldest first (Unix seconds): the breaker's window."""
        query = select(ActionRow.done_at).where(
            ActionRow.kind == "evict", ActionRow.state == ActionState.DONE, ActionRow.done_at > since
        )
        with self._read() as session:
            return [at for at in session.scalars(query.order_by(ActionRow.done_at)) if at is not None]

    def machine_failures(self, since: float) -> int:
        """Machines evicted after ``since`` (Unix seconds) because they themselves failed.

        Counts evictions of incidents of class ``machine_fault`` and of the machine that another incident
        names; healthy machines that an over-eviction took along do not count.
        """
        query = (
            select(ActionRow.key, IncidentRow.machine, IncidentRow.incident_class)
            .join(IncidentRow, IncidentRow.id == ActionRow.incident_id)
            .where(ActionRow.kind == "evict", ActionRow.state == ActionState.DONE, ActionRow.done_at > since)
        )
        with self._read() as session:
            return sum(
                kind is IncidentClass.MACHINE_FAULT or key == f"evict:{machine}"
                for key, machine, kind in session.execute(query)
            )
