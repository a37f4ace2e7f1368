"""Machines: registration, liveness, and what each is at present."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from sqlalchemy import BindParameter, Select, Table, bindparam, delete, func, select, update

from holdfast.models.agent import Register
from holdfast.models.location import Location
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.storage.ledger.columns import columns, models
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.machine_rows import NAMED_AT_ONCE, free, machine_row, no_machine
from holdfast.storage.ledger.one_view import read_once
from holdfast.storage.ledger.repairs import under_repair
from holdfast.storage.ledger.schema import MachineRow

_SET_BACK_S = 300.0
"""Reports are recorded much sooner than so long after they came."""
_IN_SERVICE = (MachineState.ACTIVE, MachineState.STANDBY)
_COMES_BACK_AS_STANDBY = frozenset({MachineState.PROVISIONING, MachineState.GONE})


class MachineChanges(TypedDict, total=False):
    """The fields of a machine that may be changed."""

    state: MachineState
    incarnation: str
    address: str
    data_address: str
    job: str | None
    cordon_scope: Scope | None
    cordon_reason: str | None
    seen_at: float
    registered_at: float


class Machines(Connection):
    """Which machines there are, in which state, and under which incarnation."""

    @repeat_on_conflict
    def register(self, register: Register, admit: bool = True) -> tuple[Machine, Machine | None]:
        """Record an agent that started; returns the machine now and as it was before (None: new).

        New, provisioning and gone machines become standbys, unless a self-check failed: then cordoned; without
        ``admit``, or under repair, they wait (provisioning) for the delivery checks. Other
        states are kept: an active machine with another incarnation than before has lost its ranks, which the
        caller must notice. The same registration sent again changes nothing but ``seen_at``.
        """
        with self._write() as session:
            row = session.get(MachineRow, register.machine, with_for_update=True)
            before = row.to(Machine) if row else None
            if row is None:
                row = MachineRow(name=register.machine, state=MachineState.PROVISIONING)
                session.add(row)
            now = self._clock.now()
            if row.incarnation != register.incarnation:
                row.registered_at = now
            row.incarnation = register.incarnation
            row.address = register.address
            row.data_address = register.data_address
            # What the driver found stays where the agent itself knows nothing.
            row.location = dict(register.location) or row.location
            row.seen_at = now
            if row.state in _COMES_BACK_AS_STANDBY:
                free(row)
                joins = admit and not under_repair(session, register.machine)
                row.state = MachineState.STANDBY if joins else MachineState.PROVISIONING
            if row.state in (MachineState.STANDBY, MachineState.PROVISIONING):
                _cordon_if_failing(row, register)
            session.flush()
            return row.to(Machine), before

    @read_once
    def machine(self, name: str) -> Machine:
        """Return the machine called ``name``.

        Raises:
            UnknownError: there is none.
        """
        with self._look() as view:
            found = models(view, columns(MachineRow, Machine, "name"), Machine, {"name": name})
        if not found:
            raise no_machine(name)
        return found[0]

    @read_once
    def machines(
        self, state: MachineState | None = None, job: str | None = None, role: str | None = None
    ) -> list[Machine]:
        """Return the machines in their natural order (m2 before m10), only of ``state``, ``job``, ``role`` if given.

        Of the role ``""`` are all that no role has for itself.
        """
        given = {"state": state, "job": job, "role": role}
        asked = {name: value for name, value in given.items() if value is not None}
        with self._look() as view:
            return models(view, _in_natural_order(tuple(asked)), Machine, asked)

    def fleet_size(self) -> int:
        """Return the number of machines that are not gone."""
        with self._read() as session:
            return session.scalar(select(func.count()).where(MachineRow.state != MachineState.GONE)) or 0

    def machines_named(self, names: Sequence[str]) -> list[Machine]:
        """These machines in this order, read together: one by one, a thousand take a second.

        Raises:
            UnknownError: one is not there.
        """
        return self._of_names(tuple(names))

    @read_once
    def _of_names(self, names: tuple[str, ...]) -> list[Machine]:
        found: dict[str, Machine] = {}
        with self._look() as view:
            for at in range(0, len(names), NAMED_AT_ONCE):
                some = models(view, _named(), Machine, {"names": names[at : at + NAMED_AT_ONCE]})
                found |= {machine.name: machine for machine in some}
        if missing := [name for name in names if name not in found]:
            raise no_machine(missing[0])
        return [found[name] for name in names]

    def set_machine(self, name: str, **changes: Unpack[MachineChanges]) -> Machine:
        """Change what is given. A machine that becomes a standby has no job and no cordon any more.

        Raises:
            UnknownError: no such machine.
        """
        if wrong := changes.keys() - MachineChanges.__annotations__.keys():
            raise TypeError(f"set_machine() got unexpected fields {sorted(wrong)}")
        with self._write() as session:
            row = machine_row(session, name, lock=True)
            if changes.get("state") is MachineState.STANDBY:
                free(row)
            for field, value in changes.items():
                setattr(row, field, value)
            return row.to(Machine)

    def admit(self, name: str, incarnation: str) -> bool:
        """Make a machine that waits a standby; False: it restarted since it was checked, or is no longer waiting.

        Raises:
            UnknownError: no such machine.
        """
        with self._write() as session:
            row = machine_row(session, name, lock=True)
            waits = row.state is MachineState.PROVISIONING and row.incarnation == incarnation
            if not waits or under_repair(session, name):
                return False
            free(row)
            row.state = MachineState.STANDBY
            return True

    @repeat_on_conflict
    def add_provisioning(self, names: Iterable[str]) -> None:
        """Announce machines that are being made. Those already known are left alone, unless they are gone."""
        with self._write() as session:
            for name in sorted(set(names)):
                row = session.get(MachineRow, name, with_for_update=True)
                if row is None:
                    session.add(MachineRow(name=name, state=MachineState.PROVISIONING))
                elif row.state is MachineState.GONE:
                    free(row)
                    row.state = MachineState.PROVISIONING

    def touch(self, seen: Mapping[tuple[str, str], float]) -> None:
        """Record when machines last reported, by name and incarnation (Unix seconds); unknown ones are left out.

        One transaction, however many they are. An older time than the recorded one came late, and changes nothing,
        unless it is so much older that the clock was set back.
        """
        noted = [{"who": name, "life": life, "at": at} for (name, life), at in seen.items()]
        mine = (MachineRow.name == bindparam("who")) & (MachineRow.incarnation == bindparam("life"))
        at: BindParameter[float] = bindparam("at")
        newer = (MachineRow.seen_at < at) | (MachineRow.seen_at > at + _SET_BACK_S)
        table = MachineRow.__table__
        assert isinstance(table, Table)
        with self._write() as session:
            if noted:
                session.connection().execute(
                    update(table).where(mine, newer).values(seen_at=bindparam("at")), noted
                )

    def set_lease(self, name: str, incarnation: str, lease_s: float) -> bool:
        """Record the longest lease that the machine may be granted from now on; False: another one, or out of service.

        Recorded before it is granted: an eviction reads here how long to wait for a machine without contact.
        """
        with self._write() as session:
            row = session.get(MachineRow, name, with_for_update=True)
            if row is None or row.incarnation != incarnation or row.state not in _IN_SERVICE:
                return False
            row.lease_s = lease_s
            return True

    def locate(self, found: Mapping[str, Location]) -> None:
        """Record where machines are, by name; unknown ones are left out."""
        with self._write() as session:
            for row in session.scalars(select(MachineRow).where(MachineRow.name.in_(found))):
                row.location = dict(found[row.name])

    def remove_machine(self, name: str) -> None:
        """Forget a machine. One that is unknown already is no error."""
        with self._write() as session:
            session.execute(delete(MachineRow).where(MachineRow.name == name))


@functools.cache
def _in_natural_order(keys: tuple[str, ...]) -> Select[Any]:
    return columns(MachineRow, Machine, *keys).order_by(func.length(MachineRow.name), MachineRow.name)


@functools.cache
def _named() -> Select[Any]:
    return columns(MachineRow, Machine).where(MachineRow.name.in_(bindparam("names", expanding=True)))


def _cordon_if_failing(row: MachineRow, register: Register) -> None:
    failed = [finding for finding in register.checks if not finding.ok]
    if failed:
        row.state = MachineState.CORDONED
        row.cordon_scope = Scope.CLUSTER
        row.cordon_reason = "self-check failed: " + "; ".join(f"{f.check} ({f.detail})" for f in failed)
