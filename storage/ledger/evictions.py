"""Evictions, done and in flight, of all jobs: counted, and begun together so that no two runs overlook each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sqlalchemy import or_, select, text
from sqlalchemy.orm import Session

from holdfast.models.alert import IncidentState
from holdfast.models.history import ActionState
from holdfast.storage.ledger.actions import begin
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.schema import ActionRow, IncidentRow

KIND = "evict"
UNCOUNTED = "uncounted"
"""In an eviction's intent: its machine was dead, and the breaker does not count it."""
_LOCK = 0x65766963  # "evic", of PostgreSQL's advisory locks


class Past(Protocol):
    """The times of evictions after ``since`` (Unix seconds), of one job or all: counted by the breaker, or not."""

    def __call__(  # noqa: D102
        self, since: float, job: str | None = None, *, counted: bool = True
    ) -> list[float]: ...


class Evictions(Connection):
    """Evictions, as the breaker counts them."""

    def evictions(
        self, since: float, job: str | None = None, but: str = "", *, counted: bool = True
    ) -> list[float]:
        """Return when machines were evicted after ``since``, oldest first (Unix seconds): the breaker's window.

        Those that an open incident has begun and not ended count from when they were begun.

        Args:
            since: Unix seconds.
            job: from that one only.
            but: an incident whose evictions in flight do not count: the caller's own, which it asks about.
            counted: those that the breaker counts; False: those of dead machines that it does not count.
        """
        with self._read() as session:
            return _times(session, since, job, but, counted=counted)

    def begin_evictions(
        self,
        incident_id: str,
        attempt: int,
        intents: Mapping[str, Mapping[str, Any]],
        may: Callable[[Past], object],
        holder: str = "",
    ) -> None:
        """Record the intents of evictions by their keys, all or none; those recorded already stay as they are.

        Runs of other jobs that begin some at the same moment wait until these are recorded, and count them.

        Args:
            incident_id: the incident.
            attempt: of it.
            intents: by key.
            may: raises what stands against them; it is given all evictions but those of this incident in flight.
            holder: of the job's lease; empty: not checked.

        Raises:
            UnknownError: no such incident.
            StaleError: as for :meth:`begin`.
        """
        with self._write() as session:
            # SQLite has one writer at a time anyway.
            if self._engine.dialect.name == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})

            def past(since: float, job: str | None = None, *, counted: bool = True) -> list[float]:
                return _times(session, since, job, incident_id, counted=counted)

            may(past)
            for key, intent in intents.items():
                begin(session, self._clock, incident_id, attempt, key, KIND, intent, holder)


def _times(session: Session, since: float, job: str | None, but: str, *, counted: bool = True) -> list[float]:
    done = (ActionRow.state == ActionState.DONE) & (ActionRow.done_at > since)
    # One that failed is tried again: its machine may be half out.
    in_flight = (
        (ActionRow.state != ActionState.DONE)
        & (ActionRow.begun_at > since)
        & (IncidentRow.state == IncidentState.OPEN)
        & (ActionRow.incident_id != but)
    )
    query = (
        select(ActionRow.state, ActionRow.begun_at, ActionRow.done_at, ActionRow.intent)
        .join(IncidentRow, IncidentRow.id == ActionRow.incident_id)
        .where(ActionRow.kind == KIND, or_(done, in_flight))
    )
    if job is not None:
        query = query.where(IncidentRow.job == job)
    rows = session.execute(query).all()
    return sorted(
        begun_at if state is not ActionState.DONE or done_at is None else done_at
        for state, begun_at, done_at, intent in rows
        if bool(intent.get(UNCOUNTED)) is not counted
    )
