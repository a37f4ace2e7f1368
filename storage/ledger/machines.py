"""Machines: registration, liveness, and the standby pool's hand-out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypedDict, Unpack

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from holdfast.errors import NoStandbyError, StaleError, UnknownError
from holdfast.models.agent import Register
from holdfast.models.machine import Machine, MachineState, Scope
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.schema import MachineRow

_COMES_BACK_AS_STANDBY = frozenset({MachineState.PROVISIONING, MachineState.GONE})


class MachineChanges(TypedDict, total=False):
    """What may be changed on a machine."""

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
    def register(self, register: Register) -> tuple[Machine, Machine | None]:
        """Record an agent that started; returns the machine now and as it was before (None: new).

        New, provisioning and gone machines become standbys, unless a self-check failed: then cordoned. Other
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
            row.seen_at = now
            if row.state in _COMES_BACK_AS_STANDBY:
                _clear(row)
                row.state = MachineState.STANDBY
            if row.state is MachineState.STANDBY:
                _cordon_if_failing(row, register)
            session.flush()
            return row.to(Machine), before

    def machine(self, name: str) -> Machine:
        """The machine called ``name``.

        Raises:
            UnknownError: there is none.
        """
        with self._read() as session:
            return machine_row(session, name).to(Machine)

    def machines(self, state: MachineState | None = None, job: str | None = None) -> list[Machine]:
        """Machines in their natural order (m2 before m10), only of ``state`` and ``job`` if given."""
        query = select(MachineRow).order_by(func.length(MachineRow.name), MachineRow.name)
        if state is not None:
            query = query.where(MachineRow.state == state)
        if job is not None:
            query = query.where(MachineRow.job == job)
        with self._read() as session:
            return [row.to(Machine) for row in session.scalars(query)]

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
                _clear(row)
            for field, value in changes.items():
                setattr(row, field, value)
            return row.to(Machine)

    @repeat_on_conflict
    def add_provisioning(self, names: Iterable[str]) -> None:
        """Announce machines that are being made. Those already known are left alone, unless they are gone."""
        with self._write() as session:
            for name in sorted(set(names)):
                row = session.get(MachineRow, name, with_for_update=True)
                if row is None:
                    session.add(MachineRow(name=name, state=MachineState.PROVISIONING))
                elif row.state is MachineState.GONE:
                    _clear(row)
                    row.state = MachineState.PROVISIONING

    def touch(self, name: str, incarnation: str, at: float) -> Machine:
        """Note that the machine was heard of at ``at`` (Unix seconds); returns it as it stands.

        Raises:
            UnknownError: no such machine; its agent has to register.
            StaleError: this incarnation was replaced.
        """
        mine = (MachineRow.name == name) & (MachineRow.incarnation == incarnation)
        with self._write() as session:
            session.execute(update(MachineRow).where(mine, MachineRow.seen_at < at).values(seen_at=at))
            row = machine_row(session, name)
            if row.incarnation != incarnation:
                raise StaleError(
                    f"machine {name!r}: incarnation {incarnation!r} was replaced by {row.incarnation!r}. "
                    "This agent must stop its ranks and end."
                )
            return row.to(Machine)

    def claim_standbys(self, job: str, n: int, excluding: Collection[str] = ()) -> list[Machine]:
        """Take ``n`` standbys for ``job``, all or none: they become active under it.

        Raises:
            NoStandbyError: there are fewer; none was taken.
        """
        if n <= 0:
            return []
        query = (
            select(MachineRow)
            .where(MachineRow.state == MachineState.STANDBY, MachineRow.name.not_in(list(excluding)))
            .order_by(func.length(MachineRow.name), MachineRow.name)
            .with_for_update()
        )
        with self._write() as session:
            # All are locked, not n: PostgreSQL drops rows that another claim took, after applying the limit.
            rows = session.scalars(query).all()
            if len(rows) < n:
                raise NoStandbyError(
                    f"job {job!r} needs {n} standby machine(s), the pool has {len(rows)}"
                    f"{f' (besides {len(excluding)} excluded)' if excluding else ''}. "
                    "Release a cordoned machine (`holdfast release MACHINE`) or provision more."
                )
            for row in rows[:n]:
                row.state, row.job = MachineState.ACTIVE, job
            return [row.to(Machine) for row in rows[:n]]

    def remove_machine(self, name: str) -> None:
        """Forget a machine. One that is unknown already is no error."""
        with self._write() as session:
            session.execute(delete(MachineRow).where(MachineRow.name == name))


def machine_row(session: Session, name: str, lock: bool = False) -> MachineRow:
    """The machine's row, locked if it is to be changed.

    Raises:
        UnknownError: no such machine.
    """
    row = session.get(MachineRow, name, with_for_update=lock or None)
    if row is None:
        raise UnknownError(f"no machine {name!r}. `holdfast machines` lists those there are.")
    return row


def _clear(row: MachineRow) -> None:
    row.job = row.cordon_scope = row.cordon_reason = None


def _cordon_if_failing(row: MachineRow, register: Register) -> None:
    failed = [finding for finding in register.checks if not finding.ok]
    if failed:
        row.state = MachineState.CORDONED
        row.cordon_scope = Scope.CLUSTER
        row.cordon_reason = "self-check failed: " + "; ".join(f"{f.check} ({f.detail})" for f in failed)
