"""Machines: registration, liveness, and the standby pool's hand-out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from sqlalchemy import Select, Table, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from holdfast.errors import AnewError, NoStandbyError, RefusedError, StaleError, UnknownError
from holdfast.models.agent import Register
from holdfast.models.incarnation import same_unit, unit_of, why_another
from holdfast.models.job import ENDED, JobState
from holdfast.models.location import Location
from holdfast.models.machine import OUT, Machine, MachineState, Scope
from holdfast.storage.ledger.connection import Connection, repeat_on_conflict
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.leases import must_hold
from holdfast.storage.ledger.repairs import under_repair
from holdfast.storage.ledger.schema import MachineRow

_NAMED_AT_ONCE = 500
_AT_REST = (JobState.RUNNING, JobState.SCALED_TO_ZERO)
"""A job that no one is about to give machines to: a playbook that claims some sets it recovering first."""
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
                _clear(row)
                joins = admit and not under_repair(session, register.machine)
                row.state = MachineState.STANDBY if joins else MachineState.PROVISIONING
            if row.state in (MachineState.STANDBY, MachineState.PROVISIONING):
                _cordon_if_failing(row, register)
            session.flush()
            return row.to(Machine), before

    def machine(self, name: str) -> Machine:
        """Return the machine called ``name``.

        Raises:
            UnknownError: there is none.
        """
        with self._read() as session:
            return machine_row(session, name).to(Machine)

    def machines(
        self, state: MachineState | None = None, job: str | None = None, role: str | None = None
    ) -> list[Machine]:
        """Return the machines in their natural order (m2 before m10), only of ``state``, ``job``, ``role`` if given.

        Of the role ``""`` are all that no role has for itself.
        """
        query = _plain().order_by(func.length(MachineRow.name), MachineRow.name)
        if state is not None:
            query = query.where(MachineRow.state == state)
        if job is not None:
            query = query.where(MachineRow.job == job)
        if role is not None:
            query = query.where(MachineRow.role == role)
        with self._read() as session:
            return _machines(session, query)

    def fleet_size(self) -> int:
        """Return the number of machines that are not gone."""
        with self._read() as session:
            return session.scalar(select(func.count()).where(MachineRow.state != MachineState.GONE)) or 0

    def machines_named(self, names: Sequence[str]) -> list[Machine]:
        """These machines in this order, read together: one by one, a thousand take a second.

        Raises:
            UnknownError: one is not there.
        """
        found: dict[str, Machine] = {}
        with self._read() as session:
            for at in range(0, len(names), _NAMED_AT_ONCE):
                some = _plain().where(MachineRow.name.in_(names[at : at + _NAMED_AT_ONCE]))
                found |= {machine.name: machine for machine in _machines(session, some)}
            if missing := [name for name in names if name not in found]:
                machine_row(session, missing[0])
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
                _clear(row)
            for field, value in changes.items():
                setattr(row, field, value)
            return row.to(Machine)

    def drain(  # noqa: PLR0917
        self, name: str, incarnation: str, scope: Scope, reason: str, job: str | None = None, holder: str = ""
    ) -> None:
        """Begin to take a machine out of service; one that is being taken out, or is out, stays as it is.

        Args:
            name: the machine's.
            incarnation: the one that is meant: one of another unit is left alone.
            scope: the jobs that the cordon keeps away.
            reason: for people.
            job: that it must serve, unless it is leaving already; None: it must serve none.
            holder: of the job's lease (empty: not looked at).

        Raises:
            UnknownError: no such machine.
            AnewError: it was restarted since.
            StaleError: it serves another job or none, or another run holds the lease.
        """
        with self._write() as session:
            row = self._meant(session, name, incarnation, job, holder)
            if row.state in OUT:
                return
            leaves = row.state is MachineState.DRAINING
            if not leaves and row.job != job:
                raise StaleError(
                    f"machine {name} serves {row.job or 'no job'} now, not {job or 'none'}: it is left alone"
                )
            if not leaves or row.cordon_reason is None:
                row.state, row.cordon_scope, row.cordon_reason = MachineState.DRAINING, scope, reason

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
            _clear(row)
            row.state = MachineState.STANDBY
            return True

    def begin_release(self, name: str, *, again: bool = False) -> Machine:
        """Let an evicted machine register again; return it as it was.

        Args:
            name: the machine's.
            again: also one that was released before, and of which nothing was heard since.

        Raises:
            UnknownError: no such machine.
            RefusedError: it is in service, or on its way.
        """
        with self._write() as session:
            row = machine_row(session, name, lock=True)
            before = row.to(Machine)
            if row.state not in OUT and not (again and row.state is MachineState.PROVISIONING):
                raise RefusedError(f"machine {name} is {row.state}: only an evicted one can be released")
            row.state, row.cordon_scope, row.cordon_reason = MachineState.PROVISIONING, None, None
            return before

    def undo_release(self, before: Machine) -> None:
        """Put a machine back whose release failed, unless it came all the same: it may serve a job by now."""
        with self._write() as session:
            row = machine_row(session, before.name, lock=True)
            if row.state is MachineState.PROVISIONING and row.incarnation == before.incarnation:
                row.state = before.state
                row.cordon_scope, row.cordon_reason = before.cordon_scope, before.cordon_reason

    def cordon(self, name: str, incarnation: str, job: str | None = None, holder: str = "") -> None:
        """Record that a draining machine (:meth:`drain`) was seen to be out.

        Raises:
            UnknownError: no such machine.
            AnewError: it was restarted since.
            StaleError: it was put into service since, or another run holds the lease.
        """
        with self._write() as session:
            row = self._meant(session, name, incarnation, job, holder)
            if row.state is MachineState.DRAINING:
                row.state, row.job, row.role = MachineState.CORDONED, None, ""
            elif row.state not in OUT:
                raise StaleError(f"machine {name} is {row.state} now: it was put into service again")

    def let_go(self, name: str, incarnation: str, job: str, holder: str = "") -> None:
        """Release a machine that ``job`` was to lose: it was replaced since, and no fault of the new one is known.

        It becomes a standby, at once or when it registers.

        Raises:
            UnknownError: no such machine.
            StaleError: another run holds the lease.
        """
        with self._write() as session:
            row = machine_row(session, name, lock=True)
            if holder:
                must_hold(session, job, holder)
            if row.job == job and row.state in (MachineState.ACTIVE, MachineState.DRAINING):
                _clear(row)
                there = not same_unit(row.incarnation, incarnation)
                row.state = MachineState.STANDBY if there else MachineState.PROVISIONING

    def lose(
        self,
        name: str,
        incarnation: str,
        job: str | None,
        reason: str,
        state: MachineState = MachineState.GONE,
    ) -> bool:
        """Take out a machine that was found dead or unfit while no recovery was to handle it, until it may come back.

        Args:
            name: the machine's.
            incarnation: the one that was found so.
            job: that it serves; None: none.
            reason: for people.
            state: its state from then on: gone (it comes back when it registers), or cordoned.

        Returns:
            False: it was restarted since, or serves another job or none; it stays as it is.

        Raises:
            UnknownError: no such machine.
        """
        with self._write() as session:
            row = machine_row(session, name, lock=True)
            if row.job != job or row.state in OUT or row.incarnation != incarnation:
                return False
            _clear(row)
            row.state, row.cordon_scope, row.cordon_reason = state, Scope.CLUSTER, reason
            return True

    @staticmethod
    def _meant(session: Session, name: str, incarnation: str, job: str | None, holder: str) -> MachineRow:
        row = machine_row(session, name, lock=True)
        if job is not None and holder:
            must_hold(session, job, holder)
        if why := why_another(name, incarnation, unit_of(row.incarnation)):
            raise AnewError(why)
        return row

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

    def touch(self, seen: Mapping[tuple[str, str], float]) -> None:
        """Record when machines last reported, by name and incarnation (Unix seconds); unknown ones are left out.

        One transaction, however many they are.
        """
        noted = [{"who": name, "life": life, "at": at} for (name, life), at in seen.items()]
        mine = (MachineRow.name == bindparam("who")) & (MachineRow.incarnation == bindparam("life"))
        newer = MachineRow.seen_at < bindparam("at")
        table = MachineRow.__table__
        assert isinstance(table, Table)
        with self._write() as session:
            if noted:
                session.connection().execute(
                    update(table).where(mine, newer).values(seen_at=bindparam("at")), noted
                )

    def locate(self, found: Mapping[str, Location]) -> None:
        """Record where machines are, by name; unknown ones are left out."""
        with self._write() as session:
            for row in session.scalars(select(MachineRow).where(MachineRow.name.in_(found))):
                row.location = dict(found[row.name])

    def give_back(self, names: Sequence[str], job: str, unfit: Sequence[str] = ()) -> None:
        """Make standbys of machines whose job ended, or is at rest without a slot for them, in one transaction.

        Those that no longer serve it are left alone. ``unfit`` ones, which the caller takes out of service then, stay
        as they are, but it must have no slot for them either.

        Raises:
            StaleError: the job has not ended (any more), and is being changed or has a slot for one of them.
        """
        with self._write() as session:
            row = job_row(session, job, lock=True)
            if row.state not in ENDED:
                placed = {*names, *unfit}.intersection(row.machines)
                if row.state not in _AT_REST or placed:
                    raise StaleError(f"job {job} is {row.state}: its machines stay with it")
            for at in range(0, len(names), _NAMED_AT_ONCE):
                mine = MachineRow.name.in_(names[at : at + _NAMED_AT_ONCE]) & (MachineRow.job == job)
                session.execute(
                    update(MachineRow)
                    .where(mine, MachineRow.state == MachineState.ACTIVE)
                    .values(
                        state=MachineState.STANDBY, job=None, role="", cordon_scope=None, cordon_reason=None
                    )
                )

    def claim_standbys(
        self,
        job: str,
        n: int,
        excluding: Collection[str] = (),
        preferred: Sequence[str] = (),
        role: str = "",
    ) -> list[Machine]:
        """Take ``n`` standbys for ``job``, all or none: they become active under it.

        Args:
            job: who takes them.
            n: how many.
            excluding: names of standbys that will not do.
            preferred: names, best first; others follow in their natural order.
            role: the job's role that has them for itself; empty: its ranks.

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
            rank = {name: index for index, name in enumerate(preferred)}
            taken = sorted(rows, key=lambda row: rank.get(row.name, len(rank)))[:n]
            for row in taken:
                row.state, row.job, row.role = MachineState.ACTIVE, job, role
            return [row.to(Machine) for row in taken]

    def withdraw(self, name: str) -> bool:
        """Take a standby out of the pool, to drain; False when it is none any more (a job has it, it is gone)."""
        with self._write() as session:
            row = session.get(MachineRow, name, with_for_update=True)
            if row is None or row.state is not MachineState.STANDBY:
                return False
            row.state = MachineState.DRAINING
            return True

    def withdraw_unregistered(self, name: str) -> bool:
        """Take a machine that was only announced out of the pool, to drain; False when it registered, or is gone."""
        with self._write() as session:
            row = session.get(MachineRow, name, with_for_update=True)
            if row is None or row.state is not MachineState.PROVISIONING or row.incarnation:
                return False
            row.state = MachineState.DRAINING
            return True

    def remove_retired(self, name: str, incarnation: str) -> bool:
        """Forget a machine that was withdrawn from the pool (:meth:`withdraw`) and given back to its engine.

        Returns:
            False: the machine of that name is another one, or was put to use since; it stays.
        """
        with self._write() as session:
            row = session.get(MachineRow, name, with_for_update=True)
            if row is None:
                return True
            leaves = row.state is MachineState.DRAINING and row.job is None
            if not leaves or not same_unit(row.incarnation or "", incarnation):
                return False
            session.delete(row)
            return True

    def remove_machine(self, name: str) -> None:
        """Forget a machine. One that is unknown already is no error."""
        with self._write() as session:
            session.execute(delete(MachineRow).where(MachineRow.name == name))


def _plain() -> Select[Any]:
    """Select columns, not objects that track changes: the gateway reads a thousand machines twice a second."""
    return select(*(getattr(MachineRow, name) for name in Machine.model_fields))


def _machines(session: Session, query: Select[Any]) -> list[Machine]:
    fields = tuple(Machine.model_fields)
    return [
        Machine.model_validate(dict(zip(fields, row, strict=True))) for row in session.execute(query).tuples()
    ]


def machine_row(session: Session, name: str, lock: bool = False) -> MachineRow:
    """Return the machine's row, locked if it is to be changed.

    Raises:
        UnknownError: no such machine.
    """
    row = session.get(MachineRow, name, with_for_update=lock or None)
    if row is None:
        raise UnknownError(f"no machine {name!r}. `holdfast machines` lists those there are.")
    return row


def _clear(row: MachineRow) -> None:
    row.job = row.cordon_scope = row.cordon_reason = None
    row.role = ""


def _cordon_if_failing(row: MachineRow, register: Register) -> None:
    failed = [finding for finding in register.checks if not finding.ok]
    if failed:
        row.state = MachineState.CORDONED
        row.cordon_scope = Scope.CLUSTER
        row.cordon_reason = "self-check failed: " + "; ".join(f"{f.check} ({f.detail})" for f in failed)
