"""Actions: the intent of every act before it, its result after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, select
from sqlalchemy import Connection as SqlConnection
from sqlalchemy.orm import Session

from holdfast.clock import Clock
from holdfast.errors import StaleError, UnknownError
from holdfast.models.history import Action, ActionState
from holdfast.storage.ledger.columns import columns, models
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.incidents import incident_row, must_be_open
from holdfast.storage.ledger.leases import must_hold
from holdfast.storage.ledger.one_view import read_once
from holdfast.storage.ledger.schema import ActionRow

OF_ALL_MACHINES = ("check", "stacks")
"""Kinds of action that look at every machine of a job: what they find on a thousand is megabytes."""


class Actions(Connection):
    """Actions of playbooks, with intents and outcomes; a second run learns here what is done already."""

    def begin(  # noqa: PLR0917
        self,
        incident_id: str,
        attempt: int,
        key: str,
        kind: str,
        intent: Mapping[str, Any],
        holder: str = "",
    ) -> Action:
        """Record an intent before acting. The action of a key that is recorded already is returned unchanged.

        Its ``state`` decides what to do: ``done`` skip it, ``intent`` or ``failed`` do it (again).

        Raises:
            UnknownError: no such incident.
            StaleError: a newer attempt works on the incident, or it is closed, or the job's lease is not
                ``holder``'s any more (empty: not checked): stop at once.
        """
        with self._write() as session:
            row = begin(session, self._clock, incident_id, attempt, key, kind, intent, holder)
            session.flush()
            session.refresh(row)
            return row.to(Action)

    def finish(self, incident_id: str, key: str, result: Mapping[str, Any] | None = None) -> Action:
        """Record that the action is done and was seen to be. The first result of a key stands.

        Raises:
            UnknownError: no such action was begun.
        """
        return self._end(incident_id, key, ActionState.DONE, dict(result or {}))

    def fail(self, incident_id: str, key: str, error: str) -> Action:
        """Record that the action failed; ``result`` becomes ``{"error": error}``. One that is done stays done.

        Raises:
            UnknownError: no such action was begun.
        """
        return self._end(incident_id, key, ActionState.FAILED, {"error": error})

    @read_once
    def actions(self, incident_id: str, kind: str | None = None, *, evidence: bool = True) -> list[Action]:
        """Return the actions of an incident, oldest first; of one kind if given.

        Without ``evidence`` those of :data:`OF_ALL_MACHINES` have no intent and result, which are most of what is read.
        """
        with self._look() as view:
            if evidence:
                asked = {"incident_id": incident_id} | ({} if kind is None else {"kind": kind})
                return models(view, columns(ActionRow, Action, *asked, by=("id",)), Action, asked)
            which = ActionRow.incident_id == incident_id
            if kind is not None:
                which &= ActionRow.kind == kind
            return actions_without_evidence(view, which)

    def _end(self, incident_id: str, key: str, state: ActionState, result: dict[str, Any]) -> Action:
        with self._write() as session:
            row = _find(session, incident_id, key)
            if row is None:
                raise UnknownError(f"incident {incident_id!r} has no action {key!r}: begin it first.")
            if row.state is not ActionState.DONE:
                row.state, row.result, row.done_at = state, result, self._clock.now()
            session.flush()
            session.refresh(row)
            return row.to(Action)


def actions_without_evidence(view: SqlConnection | Session, which: ColumnElement[bool]) -> list[Action]:
    """Return actions, oldest first; those of :data:`OF_ALL_MACHINES` without intent and result."""
    large = ActionRow.kind.in_(OF_ALL_MACHINES)
    found = _numbered(view, columns(ActionRow, Action).where(which, ~large))
    found |= _numbered(view, columns(ActionRow, Action, without=("intent", "result")).where(which, large))
    return [found[number] for number in sorted(found)]


def _numbered(view: SqlConnection | Session, query: Select[Any]) -> dict[int, Action]:
    found = {}
    for row in view.execute(query.add_columns(ActionRow.id)).mappings():
        values = dict(row)
        number = values.pop("id")
        found[number] = Action.model_validate(values)
    return found


def begin(  # noqa: PLR0917
    session: Session,
    clock: Clock,
    incident_id: str,
    attempt: int,
    key: str,
    kind: str,
    intent: Mapping[str, Any],
    holder: str,
) -> ActionRow:
    """Return the action of ``key``, recorded now unless it is already; see :meth:`Actions.begin`."""
    # The lock on the incident makes concurrent begins of one key take turns.
    incident = incident_row(session, incident_id, lock=True)
    must_be_open(incident)
    if attempt < incident.attempt:
        raise StaleError(
            f"incident {incident_id!r}: attempt {attempt} was replaced by {incident.attempt}, so it "
            f"may not begin {key!r}. This run must end."
        )
    if holder:
        must_hold(session, incident.job, holder)
    row = _find(session, incident_id, key)
    if row is None:
        row = ActionRow(
            incident_id=incident_id,
            key=key,
            kind=kind,
            intent=dict(intent),
            attempt=attempt,
            state=ActionState.INTENT,
            result={},
            begun_at=clock.now(),
        )
        session.add(row)
    return row


def _find(session: Session, incident_id: str, key: str) -> ActionRow | None:
    return session.scalars(_BY_KEY, {"incident_id": incident_id, "key": key}).first()


_BY_KEY = (
    select(ActionRow)
    .where(ActionRow.incident_id == bindparam("incident_id"), ActionRow.key == bindparam("key"))
    .with_for_update()
)
