"""The standby pool: which job has its machines, and which leave it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select, update

from holdfast.errors import NoStandbyError, StaleError
from holdfast.models.incarnation import same_unit
from holdfast.models.job import ENDED, JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.machine_rows import NAMED_AT_ONCE
from holdfast.storage.ledger.schema import MachineRow

_AT_REST = (JobState.RUNNING, JobState.SCALED_TO_ZERO)
"""A job that no one is about to give machines to: a playbook that claims some sets it recovering first."""


class Standbys(Connection):
    """Machines that no job has, and how jobs take them and give them back."""

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
            for at in range(0, len(names), NAMED_AT_ONCE):
                mine = MachineRow.name.in_(names[at : at + NAMED_AT_ONCE]) & (MachineRow.job == job)
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
