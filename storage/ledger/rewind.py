"""A copy of the ledger as it stood when an incident was opened: to decide about it again, elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from holdfast.models.alert import Classification, IncidentState
from holdfast.models.history import ActionState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.incidents import incident_row
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.schema import (
    ActionRow,
    AlertRow,
    Base,
    CheckpointRow,
    EpochRow,
    IncidentAlertRow,
    IncidentRow,
    JobRow,
    MachineRow,
    VersionRow,
    WaitRow,
)

R = TypeVar("R", bound=Base)


@dataclass(frozen=True)
class Then:
    """Facts about the moment, beyond what the tables record."""

    job: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the job."""
    lives: Mapping[str, str] = field(default_factory=dict)
    """Incarnations of machines."""
    standbys: Mapping[str, str] | None = None
    """Machines that stood by, and their incarnations; None: not known."""
    fleet: int | None = None
    """Machines that were not gone; None: not known."""


class Rewinds(Connection):
    """The past of one incident, as rows."""

    def rewind(self, incident_id: str, found: Classification, then: Then, into: Rewinds) -> None:
        """Write the job's past up to the incident into another ledger, which is empty, and the incident as just opened.

        The incident is as ``found`` describes it, without alerts. Evictions of other jobs are copied too: the breaker
        and the search for repeat offenders use them.

        Raises:
            UnknownError: no such incident.
        """
        with self._read() as old, into._write() as new:
            incident = incident_row(old, incident_id)
            job = job_row(old, incident.job)
            epochs = _epochs(old, incident)
            new.add(_job(job, incident, epochs, then))
            new.add_all(epochs)
            new.add_all(_versions(old, incident))
            new.add_all(_checkpoints(old, incident))
            new.add_all(_alerts(old, incident))
            new.add_all(_machines(old, _names(epochs, then), incident.job, then))
            new.add(_opened(incident, found))
            past = _past(old, incident)
            new.add_all(_copy(each, **_as_it_was(each, incident)) for each in past)
            new.flush()
            mine = [each.id for each in past if each.job == incident.job]
            new.add_all(_waits(old, incident))
            for row in _of(old, IncidentAlertRow, mine):
                new.add(_copy(row))
            for action in _actions(old, [each.id for each in past], incident.opened_at):
                new.add(_copy(action))


def _copy(row: R, **changes: Any) -> R:
    kept = {column.key: getattr(row, column.key) for column in type(row).__table__.columns}
    return type(row)(**(kept | changes))


def _job(job: JobRow, incident: IncidentRow, epochs: Sequence[EpochRow], then: Then) -> JobRow:
    at = epochs[-1] if epochs else None
    guessed = {} if at is None else {"code_version": at.code_version, "machines": at.machines}
    known = {
        name: then.job[name]
        for name in ("spec", "submitted_at", "code_version", "machines")
        if name in then.job
    }
    fixed = {"state": JobState.RUNNING, "epoch": incident.epoch, "incidents": incident.n, "done_at": None}
    return _copy(job, **(guessed | known | fixed))


def _names(epochs: Sequence[EpochRow], then: Then) -> list[str]:
    return list(then.job.get("machines") or (epochs[-1].machines if epochs else ()))


def _epochs(old: Session, incident: IncidentRow) -> list[EpochRow]:
    query = select(EpochRow).where(EpochRow.job == incident.job, EpochRow.epoch <= incident.epoch)
    rows = old.scalars(query.order_by(EpochRow.epoch)).all()
    open_again = {"closed_at": None, "close_reason": None}
    return [_copy(row, **(open_again if row.epoch == incident.epoch else {})) for row in rows]


def _versions(old: Session, incident: IncidentRow) -> list[VersionRow]:
    """Return the versions that existed then; only those that a rollback had marked by then are bad."""
    query = select(VersionRow).where(VersionRow.job == incident.job).order_by(VersionRow.id)
    rollbacks = (
        select(ActionRow)
        .join(IncidentRow, IncidentRow.id == ActionRow.incident_id)
        .where(
            IncidentRow.job == incident.job,
            ActionRow.kind == "rollback",
            ActionRow.state == ActionState.DONE,
            ActionRow.done_at <= incident.opened_at,
        )
    )
    bad = {str(row.result.get("from")) for row in old.scalars(rollbacks)}
    there = [row for row in old.scalars(query) if row.created_at <= incident.opened_at]
    return [_copy(row, bad=row.bad and row.version in bad) for row in there]


def _checkpoints(old: Session, incident: IncidentRow) -> list[CheckpointRow]:
    """Return the checkpoints that existed then; those that were marked suspect only later are trusted."""
    query = select(CheckpointRow).where(
        CheckpointRow.job == incident.job, CheckpointRow.saved_at <= incident.opened_at
    )
    rows = old.scalars(query).all()
    if not any(row.suspect for row in rows):
        return [_copy(row) for row in rows]
    later = _marks(old, incident, then=False) - _marks(old, incident, then=True)
    trusted = {"suspect": False, "suspect_reason": ""}
    return [_copy(row, **(trusted if _mark(row.suspect_reason) in later else {})) for row in rows]


def _marks(old: Session, incident: IncidentRow, then: bool) -> set[str]:
    """Return the marks that incidents of the job put on checkpoints by then, or since; see :func:`_mark`."""
    begun = ActionRow.begun_at <= incident.opened_at if then else ActionRow.begun_at > incident.opened_at
    query = (
        select(ActionRow)
        .join(IncidentRow, IncidentRow.id == ActionRow.incident_id)
        .where(IncidentRow.job == incident.job, ActionRow.kind.in_(("suspect", "verify")), begun)
    )
    marks: set[str] = set()
    for row in old.scalars(query):
        if row.kind == "suspect":
            marks.add(row.incident_id)
        elif refused := (row.result or {}).get("refused"):
            marks.add(f"refused: {refused}")
    return marks


def _mark(reason: str) -> str:
    """Return the part of a reason that identifies its mark: the incident; where a state was refused, all of it."""
    return reason if reason.startswith("refused: ") else reason.partition(": ")[0]


def _alerts(old: Session, incident: IncidentRow) -> list[AlertRow]:
    """Return earlier alerts about machines, by which a machine is known to flap or to be unfit."""
    at = incident.opened_at
    within = (AlertRow.recorded_at > at - _ALERTS_S) & (AlertRow.recorded_at <= at)
    query = select(AlertRow).where(within, AlertRow.machine.is_not(None)).order_by(AlertRow.id)
    return [_copy(row) for row in old.scalars(query)]


def _machines(old: Session, mine: Sequence[str], job: str, then: Then) -> list[MachineRow]:
    rows = {row.name: _copy(row) for row in old.scalars(select(MachineRow))}
    for name in (*mine, *(then.standbys or ())):
        rows.setdefault(name, MachineRow(name=name, incarnation="", address="", data_address=""))
    for name, row in rows.items():
        if name in mine:
            row.state, row.job = MachineState.ACTIVE, job
        elif then.standbys is not None:
            row.state, row.job = MachineState.CORDONED, None
        elif row.job == job:
            row.state, row.job = MachineState.STANDBY, None
        row.cordon_scope = row.cordon_reason = None
        row.role = ""
        row.incarnation = then.lives.get(name, row.incarnation)
    for name, incarnation in (then.standbys or {}).items():
        rows[name].state, rows[name].job, rows[name].incarnation = MachineState.STANDBY, None, incarnation
    if then.fleet is not None:
        surplus = [row for row in rows.values() if row.state is MachineState.CORDONED]
        for row in surplus[: max(0, len(rows) - then.fleet)]:
            row.state = MachineState.GONE
    return list(rows.values())


def _opened(incident: IncidentRow, found: Classification) -> IncidentRow:
    return _copy(
        incident,
        incident_class=found.incident_class,
        machine=found.machine,
        rank=found.rank,
        confidence=found.confidence,
        reasons=list(found.reasons),
        state=IncidentState.OPEN,
        attempt=1,
        first_task_at=None,
        recovered_at=None,
        closed_at=None,
        flow_run_id=None,
        summary="",
    )


def _past(old: Session, incident: IncidentRow) -> list[IncidentRow]:
    """Earlier incidents of the job, and those of others that evicted machines."""
    evicting = select(ActionRow.incident_id).where(
        ActionRow.kind == "evict", ActionRow.done_at <= incident.opened_at
    )
    mine = (IncidentRow.job == incident.job) & (IncidentRow.n < incident.n)
    others = (IncidentRow.job != incident.job) & IncidentRow.id.in_(evicting)
    return list(old.scalars(select(IncidentRow).where(mine | others).order_by(IncidentRow.n)))


def _waits(old: Session, incident: IncidentRow) -> list[WaitRow]:
    """Return waits of earlier incidents of the job, by which the pauses of further ones grow; all are over."""
    earlier = (IncidentRow.job == incident.job) & (IncidentRow.n < incident.n)
    query = (
        select(WaitRow)
        .join(IncidentRow, IncidentRow.id == WaitRow.incident_id)
        .where(earlier, WaitRow.since <= incident.opened_at)
    )
    return [_copy(row, over=True) for row in old.scalars(query)]


def _as_it_was(past: IncidentRow, incident: IncidentRow) -> dict[str, Any]:
    """Return the changes that undo a later end: an incident that ended later had not recovered yet."""
    later = past.closed_at is None or past.closed_at > incident.opened_at
    return {"state": IncidentState.NEEDS_HUMAN} if later else {}


def _actions(old: Session, incidents: Sequence[str], until: float) -> list[ActionRow]:
    return [row for row in _of(old, ActionRow, incidents) if row.begun_at <= until]


_AT_ONCE = 500
_ALERTS_S = 86_400.0
"""Alerts of so long before an incident are copied: no window of the policy that counts them is longer."""


def _of(old: Session, kind: type[R], incidents: Sequence[str]) -> list[R]:
    found: list[R] = []
    for at in range(0, len(incidents), _AT_ONCE):
        some = kind.__table__.c.incident_id.in_(incidents[at : at + _AT_ONCE])
        found += old.scalars(select(kind).where(some).order_by(kind.__table__.c.id))
    return found
