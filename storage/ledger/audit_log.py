"""The audit log of manual requests: person, request, time, reason and origin."""

from __future__ import annotations

from sqlalchemy import select

from holdfast.errors import UnknownError
from holdfast.models.history import ActionState, ByHand
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.schema import ByHandRow


class AuditLog(Connection):
    """Written before the act, and again when its outcome is known."""

    def note_by_hand(
        self, act: str, target: str, *, by: str, via: str, reason: str, source: str = ""
    ) -> ByHand:
        """Write down what a person asks for, before it is done."""
        with self._write() as session:
            row = ByHandRow(
                at=self._clock.now(),
                by=by,
                via=via,
                source=source,
                act=act,
                target=target,
                reason=reason,
                state=ActionState.INTENT,
                outcome="",
            )
            session.add(row)
            session.flush()
            return row.to(ByHand)

    def end_by_hand(self, number: int, state: ActionState, outcome: str) -> ByHand:
        """Record the outcome of a request.

        Raises:
            UnknownError: no such request.
        """
        with self._write() as session:
            row = session.get(ByHandRow, number)
            if row is None:
                raise UnknownError(f"no manual request {number}")
            row.state, row.outcome, row.done_at = state, outcome, self._clock.now()
            return row.to(ByHand)

    def targets_by_hand(self, act: str, since: float) -> set[str]:
        """Return the targets that ``act`` was requested for since then (Unix seconds)."""
        query = select(ByHandRow.target).where(ByHandRow.act == act, ByHandRow.at >= since)
        with self._read() as session:
            return set(session.scalars(query))

    def by_hand(self, target: str | None = None, limit: int = 100) -> list[ByHand]:
        """Return the newest ``limit`` requests, newest first; of one machine or incident if given."""
        query = select(ByHandRow).order_by(ByHandRow.id.desc()).limit(limit)
        if target is not None:
            query = query.where(ByHandRow.target == target)
        with self._read() as session:
            return [row.to(ByHand) for row in session.scalars(query)]
