"""Standbys that a role of a job takes for itself."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select

from holdfast.models.job import JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.storage.ledger.connection import Connection
from holdfast.storage.ledger.jobs import job_row
from holdfast.storage.ledger.schema import MachineRow

_TRAINS = frozenset({JobState.RUNNING, JobState.PAUSED})


class RoleMachines(Connection):
    """Those that are lost while a job trains are replaced one by one, as standbys come."""

    def claim_for_role(
        self, job: str, role: str, wanted: int, most: int, excluding: Collection[str], *, starts: bool = False
    ) -> list[Machine]:
        """Take standbys until the role has ``wanted`` machines for itself, or none is left; return the new ones.

        Safe to repeat: those that it has are counted in the same transaction.

        Args:
            job: its name. One that neither trains nor is held gets none.
            role: which has them for itself.
            wanted: how many it is to have, with those that it has.
            most: new ones at most.
            excluding: names of standbys that will not do.
            starts: the caller is about to start the job, whatever its state.

        Raises:
            UnknownError: no such job.
        """
        with self._write() as session:
            row = job_row(session, job, lock=True)
            if not starts and row.state not in _TRAINS:
                return []
            mine = (MachineRow.job == job) & (MachineRow.role == role)
            there = select(func.count()).where(mine, MachineRow.state == MachineState.ACTIVE)
            lacking = min(most, wanted - (session.scalar(there) or 0))
            if lacking <= 0:
                return []
            free = (
                select(MachineRow)
                .where(
                    MachineRow.state == MachineState.STANDBY,
                    # A slot may still name a machine that it lost, and that came back.
                    MachineRow.name.not_in([*excluding, *row.machines]),
                )
                .order_by(func.length(MachineRow.name), MachineRow.name)
                .with_for_update()
            )
            # All are locked, not some: PostgreSQL drops rows that another claim took, after applying the limit.
            taken = session.scalars(free).all()[:lacking]
            for each in taken:
                each.state, each.job, each.role = MachineState.ACTIVE, job, role
            return [each.to(Machine) for each in taken]
