"""Repairs of evicted machines: the run that does each, the steps that were begun, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from holdfast.errors import RefusedError, StaleError, UnknownError
from holdfast.models.incarnation import same_unit
from holdfast.models.machine import MachineState
from holdfast.models.repair import Ask, Repair, RepairState, Step, StepRecord, StepState
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.schema import MachineRow, RepairRow

MARGIN_S = 30.0
"""Between the end of a step at the latest and the end of its run's time: for recording the outcome."""
_ALLOWED = {
    Step.RETURN: (MachineState.CORDONED, MachineState.PROVISIONING),
    Step.CHECK: (MachineState.PROVISIONING,),
    Step.ADMIT: (MachineState.PROVISIONING,),
}


class Repairs(Connection):
    """Repairs of machines: each is done by one run at a time, and only on a machine that is not in use."""

    def open_repair(
        self, machine: str, incident_id: str | None, incarnation: str, asked: Ask, why: str
    ) -> Repair:
        """Record that a machine is to be repaired; an existing repair of the same incident and machine is kept.

        Unless that one is over, and it is the machine which it brought back that fails again.
        """
        with self._write() as session:
            query = select(RepairRow).where(
                RepairRow.machine == machine, RepairRow.incident_id == incident_id
            )
            row = session.scalars(query.order_by(RepairRow.id.desc()).with_for_update()).first()
            if row is None or _brought_back(row, incarnation):
                row = RepairRow(
                    machine=machine,
                    incident_id=incident_id,
                    incarnation=incarnation,
                    asked=asked,
                    why=why,
                    state=RepairState.OPEN,
                    opened_at=self._clock.now(),
                    steps=[],
                )
                session.add(row)
                session.flush()
            return row.to(Repair)

    def repair(self, repair_id: int) -> Repair:
        """Return the repair of that number.

        Raises:
            UnknownError: there is none.
        """
        with self._read() as session:
            return _row(session, repair_id).to(Repair)

    def repairs(
        self, *, machine: str | None = None, incident_id: str | None = None, state: RepairState | None = None
    ) -> list[Repair]:
        """Return repairs, oldest first; only of what is given."""
        query = select(RepairRow).order_by(RepairRow.id)
        if machine is not None:
            query = query.where(RepairRow.machine == machine)
        if incident_id is not None:
            query = query.where(RepairRow.incident_id == incident_id)
        if state is not None:
            query = query.where(RepairRow.state == state)
        with self._read() as session:
            return [row.to(Repair) for row in session.scalars(query)]

    def take_repair(self, repair_id: int, holder: str) -> Repair:
        """Let only ``holder`` do the repair; the run that did it before loses it when its time is up.

        Raises:
            UnknownError: there is no such repair.
            StaleError: it is over.
            RefusedError: another run does it.
        """
        with self._write() as session:
            row, now = _row(session, repair_id, lock=True), self._clock.now()
            if row.state is not RepairState.OPEN:
                raise StaleError(f"repair {repair_id} of {row.machine} is over: {row.state.value}")
            if row.holder not in ("", holder) and row.until > now:
                raise RefusedError(f"repair {repair_id} of {row.machine}: run {row.holder} does it")
            row.holder, row.until = holder, now + MARGIN_S
            return row.to(Repair)

    def begin_step(self, repair_id: int, holder: str, step: Step, why: str, at_most_s: float) -> Repair:
        """Record a step before it is done. ``return`` lets the machine register: it waits from now on.

        Raises:
            StaleError: the repair is another run's or over, or the machine is in use or was replaced.
        """
        with self._write() as session:
            row = _held(session, repair_id, holder)
            if step is not Step.TICKET:
                machine = _unused(session, row, _ALLOWED.get(step, (MachineState.CORDONED,)))
                if step is Step.RETURN:
                    machine.state = MachineState.PROVISIONING
            now, steps = self._clock.now(), list(row.steps)
            last = StepRecord.model_validate(steps[-1]) if steps else None
            times = 1
            # One that was interrupted, and a ticket that did not arrive, are done again; not a step more.
            again = StepState.BEGUN if step is not Step.TICKET else last and last.state
            if last is not None and last.step is step and last.state is again:
                times = last.times + 1
                steps.pop()
            record = StepRecord(
                step=step, state=StepState.BEGUN, begun_at=now, at_most_s=at_most_s, said=why, times=times
            )
            row.steps = [*steps, record.model_dump(mode="json")]
            row.until = now + at_most_s + MARGIN_S
            session.flush()
            return row.to(Repair)

    def end_step(
        self, repair_id: int, holder: str, state: StepState, summary: str, incarnation: str | None = None
    ) -> Repair:
        """Record the outcome of the step that was begun last; ``incarnation``: of the machine that returned.

        Raises:
            StaleError: the repair is another run's or over.
        """
        with self._write() as session:
            row = _held(session, repair_id, holder)
            record = StepRecord.model_validate(row.steps[-1])
            done = record.model_copy(
                update={"state": state, "said": summary[:1000], "done_at": self._clock.now()}
            )
            row.steps = [*row.steps[:-1], done.model_dump(mode="json")]
            row.incarnation = incarnation or row.incarnation
            row.until = self._clock.now() + MARGIN_S
            session.flush()
            return row.to(Repair)

    def admit_repaired(self, repair_id: int, holder: str, outcome: str) -> Repair:
        """Make the machine a standby, mark the step as done and close the repair: all of it or nothing.

        Raises:
            StaleError: the repair is another run's or over, or the machine is in use or was replaced.
        """
        with self._write() as session:
            row = _held(session, repair_id, holder)
            machine = _unused(session, row, _ALLOWED[Step.ADMIT])
            if machine.incarnation != row.incarnation:
                raise StaleError(f"machine {row.machine} restarted since it was checked")
            machine.state, machine.cordon_scope, machine.cordon_reason = MachineState.STANDBY, None, None
            return self._closed(session, row, RepairState.REPAIRED, outcome)

    def close_repair(self, repair_id: int, holder: str, state: RepairState, outcome: str) -> Repair:
        """Close the repair; a step that was begun counts as done, unless the repair is cancelled.

        Raises:
            StaleError: it is another run's or over.
        """
        with self._write() as session:
            return self._closed(session, _held(session, repair_id, holder), state, outcome)

    def cancel_repairs(self, machine: str, why: str) -> None:
        """Cancel the repairs of a machine that is handled elsewhere.

        Raises:
            RefusedError: a step is under way on it.
        """
        with self._write() as session:
            query = select(RepairRow).where(RepairRow.machine == machine, RepairRow.state == RepairState.OPEN)
            for row in session.scalars(query.with_for_update()).all():
                last = StepRecord.model_validate(row.steps[-1]) if row.steps else None
                left_s = row.until - self._clock.now()
                if last is not None and last.state is StepState.BEGUN and left_s > 0:
                    raise RefusedError(
                        f"machine {machine} is being repaired ({last.step.value}, over in {left_s:.0f} s at the "
                        "latest): try again then"
                    )
                self._closed(session, row, RepairState.CANCELLED, why)

    def _closed(self, session: Session, row: RepairRow, state: RepairState, outcome: str) -> Repair:
        now = self._clock.now()
        if row.steps and row.steps[-1]["state"] == StepState.BEGUN:
            ended = StepState.FAILED if state is RepairState.CANCELLED else StepState.WORKED
            record = StepRecord.model_validate(row.steps[-1])
            done = record.model_copy(update={"state": ended, "done_at": now})
            row.steps = [*row.steps[:-1], done.model_dump(mode="json")]
        row.state, row.outcome, row.closed_at = state, outcome[:1000], now
        row.holder, row.until = "", 0.0
        session.flush()
        return row.to(Repair)


def _brought_back(row: RepairRow, incarnation: str) -> bool:
    returned = any(done["step"] == Step.RETURN for done in row.steps)
    return row.state is not RepairState.OPEN and returned and row.incarnation == incarnation


def under_repair(session: Session, machine: str) -> bool:
    """Return whether a repair of the machine is open: it joins no pool by itself."""
    query = select(RepairRow.id).where(RepairRow.machine == machine, RepairRow.state == RepairState.OPEN)
    return session.scalars(query).first() is not None


def _row(session: Session, repair_id: int, lock: bool = False) -> RepairRow:
    row = session.get(RepairRow, repair_id, with_for_update=lock or None)
    if row is None:
        raise UnknownError(f"no repair {repair_id}")
    return row


def _held(session: Session, repair_id: int, holder: str) -> RepairRow:
    row = _row(session, repair_id, lock=True)
    if row.state is not RepairState.OPEN or row.holder != holder:
        raise StaleError(
            f"repair {repair_id} of {row.machine} is {row.holder or row.state.value}'s, not {holder}'s"
        )
    return row


def _unused(session: Session, row: RepairRow, allowed: Sequence[MachineState]) -> MachineRow:
    """Return the machine's row, locked, if it is not in use and is the one that is meant.

    Raises:
        StaleError: it is not.
    """
    machine = session.get(MachineRow, row.machine, with_for_update=True)
    if machine is None:
        raise StaleError(f"machine {row.machine} is not there any more")
    if machine.job is not None or machine.state not in allowed:
        raise StaleError(f"machine {row.machine} is {machine.state.value} now: it is left alone")
    returned = any(done["step"] == Step.RETURN for done in row.steps)
    if not returned and not same_unit(machine.incarnation, row.incarnation):
        raise StaleError(f"machine {row.machine} was restarted since its eviction: it is left alone")
    return machine
