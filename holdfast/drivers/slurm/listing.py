"""Parse Slurm's lists of our allocations and their nodes. Pure."""

from __future__ import annotations

from holdfast.models.base import Frozen

JOB_FORMAT = "%A|%T|%N|%r|%k"
"""squeue: id, state, node, reason, comment."""
NODE_FORMAT = "%N|%T|%E"
"""sinfo: name, state, reason."""

# Job states of https://slurm.schedmd.com/squeue.html
_QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_NOT_THE_NODES_FAULT = frozenset({"DEADLINE", "PREEMPTED", "STOPPED", "SUSPENDED", "TIMEOUT"})
_HELD_BY_SLURM = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
_REASONS_TO_HOLD = frozenset({"BadConstraints", "JobHoldMaxRequeue"})
_REASONS_OF_TIME = frozenset({"TimeLimit", "DeadLine"})
_USABLE = frozenset(
    {
        "ALLOCATED",
        "ALLOC",
        "COMPLETING",
        "COMP",
        "IDLE",
        "MIXED",
        "MIX",
        "PLANNED",
        "RESERVED",
        "RESV",
        "MAINT",
    }
)


class Allocation(Frozen):
    """One of our Slurm jobs."""

    id: int
    state: str
    node: str = ""
    reason: str = ""
    comment: str = ""

    @property
    def queued(self) -> bool:
        """Whether the job waits for a node."""
        return self.state in _QUEUED

    @property
    def stuck(self) -> bool:
        """Whether Slurm holds it for good: it starts when a person releases it. One that a person holds is none."""
        return self.state in _HELD_BY_SLURM or (self.queued and self.reason in _REASONS_TO_HOLD)

    @property
    def over(self) -> bool:
        """Whether nothing of the job runs any more, as far as Slurm knows."""
        return self.state in _OVER

    @property
    def completing(self) -> bool:
        """Whether it ends: the epilog runs, or processes are still there. What ended it shows only afterwards."""
        return self.state == "COMPLETING"

    @property
    def taken_away(self) -> bool:
        """Slurm ended or suspended it for reasons that have nothing to do with the node's health."""
        return self.state in _NOT_THE_NODES_FAULT or (self.completing and self.reason in _REASONS_OF_TIME)

    @property
    def cancelled(self) -> bool:
        """Whether a person or we cancelled it."""
        return self.state == "CANCELLED"


class Node(Frozen):
    """A node as Slurm sees it."""

    name: str
    state: str
    """Upper case, without the marks that sinfo appends."""
    responds: bool = True
    reason: str = ""

    @property
    def drained(self) -> bool:
        """Whether the node gets no new jobs because it was drained, or is marked as one that is to fail."""
        return self.state.startswith(("DRAIN", "FAIL"))

    @property
    def down(self) -> bool:
        """Whether it was set down, by a person or by slurmctld."""
        return self.state.startswith("DOWN")

    @property
    def usable(self) -> bool:
        """Whether Slurm would start a job there, now or when it is free."""
        return self.responds and self.state in _USABLE


def allocations(text: str) -> list[Allocation]:
    """Parse the output of squeue with :data:`JOB_FORMAT`, oldest first."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) != 5 or not fields[0].strip().isdigit():
            continue
        identifier, state, node, reason, comment = (field.strip() for field in fields)
        values = {"state": state.upper(), "node": node, "reason": reason, "comment": comment}
        found.append(Allocation(id=int(identifier), **values))
    return sorted(found, key=lambda each: each.id)


def nodes(text: str) -> dict[str, Node]:
    """Parse the output of sinfo with :data:`NODE_FORMAT`, by name; it lists a node once for each partition."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) != 3:
            continue
        name, state, reason = fields
        # https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES
        plain = state.rstrip("*~#!%$@^-+")
        reason = "" if reason.lower() == "none" else reason
        found[name] = Node(name=name, state=plain.upper(), responds="*" not in state, reason=reason)
    return found
