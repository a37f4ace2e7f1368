"""Decisions for large jobs, and the ladder up to its first retry with every tier of the diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.site import Site
from benchmarks.table import Row
from holdfast.models.agent import Frame, StackDump
from holdfast.models.alert import Finding, IncidentClass
from holdfast.models.job import Job, JobSpec, JobState, Parallelism
from holdfast.policies.diagnose import pairing
from holdfast.policies.diagnose.aggregate import aggregate
from holdfast.policies.diagnose.verdicts import judge

RANKS, FRAMES, MACHINES = 10_240, 50, 1200
LADDER_NOTE = (
    "first task to the choice of the rung, 4 machines x 2 ranks: inspection, vendor, product, all-to-all, all-gather, "
    "interfaces, bit-wise alignment, flight recorder; nothing is wrong, so none is left out.",
)


def run(site: Site, n: int) -> list[Row]:
    """Three rows."""
    return [
        Row("10,240 stacks of 50 frames aggregated", "s", _timed(_aggregation(), n), target=1.0),
        Row("1,200 machines' diagnosis judged", "s", _timed(_judgement(), n), target=0.1),
        Row(
            "ladder before the first retry, all tiers",
            "s",
            [_ladder(site) for _ in range(max(1, n // 3))],
            target=30.0,
            notes=LADDER_NOTE,
        ),
    ]


def _timed(work: Callable[[], object], n: int) -> list[float]:
    samples = []
    for _ in range(n):
        started = time.perf_counter()
        work()
        samples.append(time.perf_counter() - started)
    return samples


def _aggregation() -> Callable[[], object]:
    spec = JobSpec(
        name="big",
        script="train.py",
        machines=RANKS // 8,
        ranks_per_machine=8,
        parallelism=Parallelism(tp=8, pp=4),
    )
    names = tuple(f"m{slot}" for slot in range(spec.machines))
    job = Job(spec=spec, state=JobState.RUNNING, epoch=1, code_version="v1", machines=names, submitted_at=0.0)
    base = [(f"layer_{i}", f"model/part_{i % 7}.py") for i in range(FRAMES - 1)]

    def stack(rank: int) -> StackDump:
        top = (
            ("forward", "train.py")
            if rank == 4242
            else ("all_reduce", "torch/distributed/distributed_c10d.py")
        )
        # Frames of its own, as they come from each agent: nothing is shared between stacks.
        frames = tuple(Frame(function=function, file=file) for function, file in (top, *base))
        return StackDump(machine=f"m{rank // 8}", rank=rank, pid=rank, frames=frames)

    stacks = [stack(rank) for rank in range(RANKS)]
    return lambda: aggregate(stacks, job)


def _judgement() -> Callable[[], object]:
    names = [f"m{i}" for i in range(MACHINES)]
    findings = [
        Finding(check="all_gather", machine=one, peer=other, ok="m7" not in (left, right))
        for left, right in pairing.neighbours(names)
        for one, other in ((left, right), (right, left))
    ]
    for name in names:
        findings.append(Finding(check="inspect", machine=name, ok=True))
        findings += [
            Finding(check="matmul", machine=name, rank=rank, ok=True, value=1.0, kind="gpu")
            for rank in range(8)
        ]
    return lambda: judge(findings, 1.5)


def _ladder(site: Site) -> float:
    """Seconds from the playbook's first task to the choice of its rung."""
    with site.job(4, 2) as job:
        evidence = {"class": IncidentClass.HOST_PRESSURE.value, "by": "benchmark"}
        alert = {
            "kind": "manual",
            "job": job.spec.name,
            "at": time.time(),
            "fingerprint": job.spec.name,
            "evidence": evidence,
        }
        site.gateway._call("POST", "/v1/alerts", alert)
        closed = job.closed_incident()
        (rung,) = [action for action in closed["actions"] if action["kind"] == "rung"]
        return float(rung["done_at"] - closed["incident"]["first_task_at"])
