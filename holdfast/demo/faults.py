"""The faults of the demo, in order: what breaks, where, and which playbook should repair it."""

from __future__ import annotations

from holdfast.models.alert import IncidentClass
from holdfast.models.base import Frozen


class ScheduledFault(Frozen):
    """One fault of the schedule."""

    name: str
    """Name of the fault in ``holdfast inject``."""
    title: str
    expected: IncidentClass
    slot: int
    """Which of the job's machines, by slot."""
    local_rank: int | None = None
    """Which rank of that machine; None: the machine as a whole."""
    costs_machine: bool = False
    """The machine must be found and evicted; its place is taken by a standby."""
    deadline_s: float = 45.0
    """Most seconds from injection to the first new step."""


SCHEDULE: tuple[ScheduledFault, ...] = (
    ScheduledFault(
        name="kill-rank",
        title="a rank is killed (SIGKILL)",
        expected=IncidentClass.JOB_CRASH,
        slot=1,
        local_rank=1,
    ),
    ScheduledFault(
        name="kill-machine",
        title="a machine dies with its agent, memory and disk",
        expected=IncidentClass.MACHINE_FAULT,
        slot=0,
        costs_machine=True,
    ),
    ScheduledFault(
        name="hang-rank",
        title="a rank stops answering (SIGSTOP)",
        expected=IncidentClass.JOB_HANG,
        slot=2,
        local_rank=0,
        deadline_s=60.0,
    ),
    ScheduledFault(
        name="code-bug",
        title="a code update raises TypeError some steps later",
        expected=IncidentClass.USER_CODE_ERROR,
        slot=0,
        deadline_s=60.0,
    ),
    ScheduledFault(
        name="xid-79",
        title="Xid 79 in the kernel log: a GPU fell off the bus",
        expected=IncidentClass.MACHINE_FAULT,
        slot=3,
        costs_machine=True,
    ),
    ScheduledFault(
        name="bad-matmul",
        title="a machine computes wrong matrix products, the loss turns NaN",
        expected=IncidentClass.NAN_LOSS,
        slot=1,
        costs_machine=True,
        deadline_s=90.0,
    ),
)
