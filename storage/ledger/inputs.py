"""Inputs of decisions, beyond what other tables keep, so that the decisions can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import InputRow

OPENED = "opened"
"""Kind of the inputs from which the gateway opened the incident."""


def taken_up(round_: int) -> str:
    """Return the kind of the inputs that a playbook found when it took the incident up, in its round."""
    return f"taken_up:r{round_}"


def answered(question: str) -> str:
    """Return the kind of the inputs that a playbook found when a question (the key of its action) was answered."""
    return f"answered:{question}"


class Inputs(Connection):
    """Inputs of decisions, by incident and name."""

    @repeat_on_conflict
    def note_input(self, incident_id: str, name: str, body: Mapping[str, Any]) -> None:
        """Record one input; the first of a name is kept."""
        with self._write() as session:
            if session.get(InputRow, (incident_id, name)) is None:
                session.add(
                    InputRow(incident_id=incident_id, name=name, at=self._clock.now(), body=dict(body))
                )

    def inputs(self, incident_id: str) -> dict[str, dict[str, Any]]:
        """Return all inputs that were recorded for an incident, by name."""
        with self._read() as session:
            rows = session.scalars(select(InputRow).where(InputRow.incident_id == incident_id))
            return {row.name: row.body for row in rows}
