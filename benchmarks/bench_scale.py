"""How large: what each cost is at 150 to 1,200 machines, and which would be first to break at 10,000.

The fleet (:mod:`benchmarks.fleet`) is one process, gateway and services are others; what is measured of the gateway is
its process alone. Commands go out from this process by the playbooks' own code.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import prefect_api
from benchmarks.fleet.ranks import FIRST_STEP_S
from benchmarks.fleet.site import RANKS, FleetSite, fleet_site
from benchmarks.fleet.team import as_a_team
from benchmarks.growth import at_size, first_to_break
from benchmarks.table import Row, plain
from holdfast.deployments.worker.environment import client_environment
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import Job, JobState
from holdfast.models.machine import MachineState
from tests.e2e.waiting import free_ports

SIZES = (150, 300, 600, 1200)
LOST_AT_ONCE = 0.625
"""Share of the largest fleet that dies in one moment: 750 of 1,200."""
FAR = 10_000
HEARTBEAT_S = 10.0
_BEATS = 3
_SPARES = 2
_CLOSED_S = 240.0


@dataclass
class Costs:
    """Measurements at one size. Seconds, unless the name has another unit."""

    machines: int
    cpu_share: float = 0.0
    """Of one core, by the gateway's process under heartbeats."""
    rss_mib: float = 0.0
    submit: float = 0.0
    dump: list[float] = field(default_factory=list)
    stop: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    status: float = 0.0
    noticed_beats: float = 0.0
    playbook: float = 0.0
    """From its first task until the incident is closed, without what ranks need for their first step."""
    spans: dict[str, float] = field(default_factory=dict)
    """Of the playbook, by action."""


@dataclass
class Catastrophe:
    """Hundreds of machines dead in one moment."""

    machines: int
    dead: int
    evicted: int
    state: str
    summary: str
    closed_s: float
    """From the deaths until the incident was closed."""
    grown_mib: float
    report_lines: int
    report_longest: int
    """Characters of its longest line."""


def run(n: int) -> list[Row]:
    """All sizes once; commands to all machines ``n`` times, five at most."""
    costs, worst = measure(SIZES, min(n, 5))
    return rows(costs, worst)


def run_team(n: int) -> list[Row]:
    """The same on a team's site: PostgreSQL, TLS."""
    costs, worst = measure(SIZES, min(n, 5), team=True)
    return rows(costs, worst, "TLS, PostgreSQL: ")


def measure(sizes: Sequence[int], rounds: int, *, team: bool = False) -> tuple[list[Costs], Catastrophe]:
    """One site whose fleet grows; the embedded default, or a ``team``'s."""
    costs: list[Costs] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-scale-")))
        chosen = stack.enter_context(as_a_team(folder)) if team else {}
        site = stack.enter_context(
            fleet_site(folder / "home", 0, free_ports(), heartbeat_s=HEARTBEAT_S, **chosen)
        )
        os.environ.update(client_environment(site.settings))
        for size in sizes:
            costs.append(_at(site, size, rounds, stop=size != sizes[-1]))
            print(f"  {costs[-1]}", flush=True)
        worst = _catastrophe(site, site.ledger.job(_name(sizes[-1])))
        print(f"  {worst}", flush=True)
    return costs, worst


def rows(costs: Sequence[Costs], worst: Catastrophe, where: str = "") -> list[Row]:
    """The table: figures of the largest fleet, with their growth as notes; ``where`` begins each line."""
    size = f"{where}{costs[-1].machines:,} machines"
    kinds: list[tuple[str, str, float, list[list[float]]]] = [
        (
            f"gateway's CPU under heartbeats every {HEARTBEAT_S:g} s",
            "cores",
            0.5,
            [[c.cpu_share] for c in costs],
        ),
        ("gateway's memory", "MiB", 500, [[c.rss_mib] for c in costs]),
        ("dump-stacks-all and their analysis", "s", 5, [c.dump for c in costs]),
        ("stop-all (fence)", "s", 5, [c.stop for c in costs]),
        ("start-all (plan, code, ranks)", "s", 5, [c.start for c in costs]),
        ("status of all", "s", 1, [[c.status] for c in costs]),
        ("a dead machine is noticed after", "heartbeats", 2, [[c.noticed_beats] for c in costs]),
        ("machine_fault playbook, beyond what ranks need", "s", 10, [[c.playbook] for c in costs]),
    ]
    found, far = [], {}
    for what, unit, target, samples in kinds:
        medians = {c.machines: statistics.median(each) for c, each in zip(costs, samples, strict=True)}
        far[what] = (at_size(medians, FAR), target, unit)
        by_size = ", ".join(f"{machines:,}: {value:.3g}" for machines, value in medians.items())
        note = f"{what}, {unit} by machines: {by_size}; at {FAR:,} by extension {far[what][0]:.3g}."
        found.append(
            Row(
                f"{size}: {what}",
                unit,
                samples[-1],
                target=target,
                notes=(note,),
                details={"by_machines": medians},
            )
        )
    found[-1] = _with_notes(found[-1], first_to_break(far, FAR))
    return [*found, *_catastrophe_rows(worst, where)]


def _with_notes(row: Row, *more: str) -> Row:
    return Row(row.what, row.unit, row.samples, row.target, notes=(*row.notes, *more), details=row.details)


def _catastrophe_rows(worst: Catastrophe, where: str) -> list[Row]:
    what = f"{where}{worst.dead:,} of {worst.machines:,} machines die at once"
    note = f"{what}: {worst.state} after {worst.closed_s:.0f} s: {worst.summary}"
    return [
        Row(f"{what}: evicted", "machines", [worst.evicted], target=0, notes=(note,)),
        Row(f"{what}: the gateway grows by", "MiB", [worst.grown_mib], target=64),
        Row(f"{what}: the report has", "lines", [worst.report_lines], target=100),
        Row(f"{what}: its longest line has", "characters", [worst.report_longest], target=1000),
    ]


def _at(site: FleetSite, size: int, rounds: int, *, stop: bool) -> Costs:
    costs, name = Costs(size), _name(size)
    site.have_standbys(size + _SPARES)
    begun = time.perf_counter()
    site.submit(name, size)
    costs.submit = time.perf_counter() - begun
    time.sleep(HEARTBEAT_S + 2 * FIRST_STEP_S)  # every machine has reported its ranks
    costs.cpu_share = _cpu_share(site, _BEATS * HEARTBEAT_S)
    costs.rss_mib = _rss_mib(site)
    begun = time.perf_counter()
    status = site.gateway.status()
    costs.status = time.perf_counter() - begun
    assert sum(len(job["ranks"]) for job in status["jobs"] if job["name"] == name) == size * RANKS
    asyncio.run(_commands(site, name, costs, rounds))
    time.sleep(HEARTBEAT_S + 2 * FIRST_STEP_S)
    _lose_one(site, name, costs)
    if stop:
        site.gateway.command(name, "stop")
    return costs


async def _commands(site: FleetSite, name: str, costs: Costs, rounds: int) -> None:
    """Stacks of all ranks, then at once stop them all, then start them all."""
    from holdfast.deployments.worker.run_process import calm_collector  # noqa: PLC0415
    from holdfast.operations import fence, fleet, launch  # noqa: PLC0415
    from holdfast.operations.first_steps import first_steps  # noqa: PLC0415
    from holdfast.policies.diagnose import aggregate  # noqa: PLC0415
    from holdfast.tasks.context import context  # noqa: PLC0415  (brings Prefect, which reads its environment)

    ctx = context()
    ctx.warm()
    calm_collector()
    for _ in range(rounds):
        job = site.ledger.job(name)
        machines = site.ledger.machines(job=name)
        begun = time.perf_counter()
        answers = await fleet.ask(ctx, machines, lambda agent, _: agent.stacks(name, job.epoch))  # noqa: B023
        stacks = [stack for dumps in fleet.all_or_raise(answers).values() for stack in dumps]
        aggregate.aggregate(stacks, job, ctx.policy.aggregate)
        costs.dump.append(time.perf_counter() - begun)
        site.ledger.set_job(name, state=JobState.PAUSED)  # to the gateway, this is on purpose
        begun = time.perf_counter()
        fenced = await fence.fence(ctx, machines, name, job.epoch)
        costs.stop.append(time.perf_counter() - begun)
        assert not fenced.lost, fenced.lost
        assert not fenced.silent, fenced.silent
        begun = time.perf_counter()
        await launch.launch(ctx, name, "benchmark")
        costs.start.append(time.perf_counter() - begun)
        await first_steps(ctx, name, job.epoch + 1, 60.0)


def _lose_one(site: FleetSite, name: str, costs: Costs) -> None:
    job = site.ledger.job(name)
    at = time.time()
    site.driver.kill([job.machines[len(job.machines) // 2]])
    incident = site.closed_incident(name, _CLOSED_S)
    assert incident.state is IncidentState.RECOVERED, incident
    assert incident.first_task_at is not None
    assert incident.closed_at is not None
    costs.noticed_beats = (incident.detected_at - at) / HEARTBEAT_S
    costs.playbook = incident.closed_at - incident.first_task_at - FIRST_STEP_S
    for action in site.ledger.actions(incident.id):
        if action.done_at is not None:
            costs.spans[action.key] = round(action.done_at - action.begun_at, 2)


def _catastrophe(site: FleetSite, job: Job) -> Catastrophe:
    before = _rss_mib(site)
    out = len(site.ledger.machines(state=MachineState.CORDONED))
    dead = job.machines[: int(LOST_AT_ONCE * len(job.machines))]
    known = {incident.id for incident in site.ledger.incidents(job=job.name)}
    at = time.time()
    site.driver.kill(dead)
    site.wait("an incident", lambda: {i.id for i in site.ledger.incidents(job=job.name)} - known, _CLOSED_S)
    incident = site.closed_incident(job.name, _CLOSED_S)
    closed_at = incident.closed_at or time.time()
    time.sleep(2 * HEARTBEAT_S)  # all that is still to be heard of the dead
    report = _report(site, incident).splitlines()
    return Catastrophe(
        machines=len(job.machines),
        dead=len(dead),
        evicted=len(site.ledger.machines(state=MachineState.CORDONED)) - out,
        state=incident.state.value,
        summary=incident.summary,
        closed_s=closed_at - at,
        grown_mib=max(0.0, _rss_mib(site) - before),
        report_lines=len(report),
        report_longest=max(map(len, report), default=0),
    )


def _report(site: FleetSite, incident: Incident) -> str:
    """The incident's report, as Prefect has it."""
    asked = {"artifacts": {"flow_run_id": {"any_": [incident.flow_run_id]}, "type": {"any_": ["markdown"]}}}
    with prefect_api.client(site.settings) as prefect:
        answer = prefect.post("/artifacts/filter", json=asked)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()
    return "\n".join(str(each["data"]) for each in found)


def _cpu_share(site: FleetSite, seconds: float) -> float:
    process = site.gateway_process

    def used() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before, begun = used(), time.perf_counter()
    time.sleep(seconds)
    return (used() - before) / (time.perf_counter() - begun)


def _rss_mib(site: FleetSite) -> float:
    return float(site.gateway_process.memory_info().rss) / (1 << 20)


def _name(size: int) -> str:
    return f"scale-{size}"


def main() -> None:
    """Sizes of your own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_scale", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="machines, with commas between")
    parser.add_argument("-n", type=int, default=3, help="rounds of commands")
    parser.add_argument("--team", action="store_true", help="with TLS, and PostgreSQL in place of SQLite")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    print(plain(rows(*measure(sizes, args.n, team=args.team))))


if __name__ == "__main__":
    main()
