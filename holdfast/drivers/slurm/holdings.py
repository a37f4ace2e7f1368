"""Our nodes, as the record of them and Slurm's list of jobs show them together."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.drivers.base import Supplied
from holdfast.drivers.slurm.listing import Allocation, Node
from holdfast.drivers.slurm.record import HeldNode, SlurmRecord


def arrived(record: SlurmRecord, jobs: Mapping[int, Allocation]) -> list[Allocation]:
    """Return jobs on nodes that the record does not list under them; not on evicted machines."""
    found = []
    for job in jobs.values():
        if job.over or job.queued or not job.node:
            continue
        held = record.machines.get(job.node)
        # The later of two has the node; ids say which, but for one that waited longer, and where they began again.
        if held is None or (
            not held.evicted and held.job != job.id and (held.job < job.id or ended(job.node, held, jobs))
        ):
            found.append(job)
    return found


def job_of(machine: str, held: HeldNode, jobs: Mapping[int, Allocation]) -> Allocation | None:
    """Return the machine's job; None: it is gone, or was requeued and runs on another node, as another machine."""
    job = jobs.get(held.job)
    return job if job is not None and job.node in ("", machine) else None


def ended(machine: str, held: HeldNode, jobs: Mapping[int, Allocation]) -> bool:
    """Return whether the machine's job is over, or gone."""
    job = job_of(machine, held, jobs)
    return job is None or job.over


def supplied(name: str, held: HeldNode, job: Allocation | None, node: Node | None) -> Supplied:
    """Return a machine as the driver's users see it."""
    node_state = (
        f"node {node.state.lower()}{'' if node.responds else ', does not respond'}"
        if node
        else f"Slurm knows no node {name} any more (taken out of slurm.conf?)"
    )
    if held.evicted is not None:
        return Supplied(
            name=name,
            alive=False,
            detail=f"evicted ({held.evicted.scope}): {held.evicted.reason}; {node_state}",
        )
    if job is None or job.over:
        what = "is gone" if job is None else job.state.lower()
        return Supplied(name=name, alive=False, detail=f"job {held.job} {what}; {node_state}")
    if job.queued:
        return Supplied(name=name, alive=True, detail=f"job {job.id} waits in the queue ({job.reason})")
    return Supplied(name=name, alive=True, detail=f"job {job.id}; {node_state}")
