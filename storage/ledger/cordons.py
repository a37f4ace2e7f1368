"""Machines that are taken out of service, and how they come back."""

from __future__ import annotations

from sqlalchemy.orm import Session

from holdfast.errors import RefusedError, ReplacedUnitError, StaleError
from holdfast.models.incarnation import same_unit, unit_of, why_another
from holdfast.models.machine import OUT, Machine, MachineState, Scope
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.leases import must_hold
from holdfast.storage.ledger.machine_rows import free, machine_row
from holdfast.storage.ledger.schema import MachineRow


class Cordons(Connection):
    """Which machines are out of service, and why."""

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
            ReplacedUnitError: it was restarted since.
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

    def cordon(self, name: str, incarnation: str, job: str | None = None, holder: str = "") -> None:
        """Record that a draining machine (:meth:`drain`) was seen to be out.

        Raises:
            UnknownError: no such machine.
            ReplacedUnitError: it was restarted since.
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
                free(row)
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
            free(row)
            row.state, row.cordon_scope, row.cordon_reason = state, Scope.CLUSTER, reason
            return True

    @staticmethod
    def _meant(session: Session, name: str, incarnation: str, job: str | None, holder: str) -> MachineRow:
        row = machine_row(session, name, lock=True)
        if job is not None and holder:
            must_hold(session, job, holder)
        if why := why_another(name, incarnation, unit_of(row.incarnation)):
            raise ReplacedUnitError(why)
        return row

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
