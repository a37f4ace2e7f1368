"""Holdfast's cost while nothing is wrong: the Session in each step, the agent at rest."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.site import SMALL_STEPS, Site
from benchmarks.steps import wait
from benchmarks.table import Row
from holdfast.paths import machine_dir

REST_S = 30.0
STEPS = 5000
SHORT_STEPS_S = 600.0
SHORT_BATCHES = (8, 50)
"""Samples of a short step: about 0.1 and 0.3 s of it on two cores."""
IDLE_BATCH, IDLE_S = 1, (0.1, 0.3)
"""The same where a GPU would compute: few samples, and a part of the step in which the host is idle."""
PACED, PACED_BLOCK = 0.01, 150
"""For some rows: largest share that saves may take; steps of a block, which holds several saves then."""
ALL_RANKS, CORE_EACH = (4, 2), (2, 1)
"""Machines and ranks of each: four ranks to a core, and a core to each rank, as hosts with GPUs have."""
SHORT_NOTE = (
    "Held up: in checkpoint(), and before the optimizer may step. Lost: beside steps without saves; where steps keep "
    "both cores busy, the copies of all ranks, their digests and the peers' copies take their time from the same two. "
    "Host idle: the processors have nothing to do for that part of a step, as while a GPU computes."
)
NOTES = (
    f"Session: step(), checkpoint() and two phases, with all they send (a process takes it), but without the copy of "
    f"the state; median of {STEPS} steps per run.",
    f"agent at rest: over {REST_S:.0f} s, each of the machines that stand by; its fork server, which has torch "
    "loaded, is another process. Memory and modules: of an agent that is a program of its own, as on a cluster. Those "
    "that one `holdfast up` starts together are forks of one process that has torch, and share its pages: of each of "
    "them only the memory that it does not share counts.",
)


def run(site: Site, n: int) -> list[Row]:
    """Rows for the Session, for saves in short steps, and for an agent's CPU, memory and modules."""
    costs = [_session(site.folder()) for _ in range(n)]
    print(f"  Session: {statistics.median(costs):.1f} microseconds per step", flush=True)
    return [
        Row("Session per step, without the copy", "us", costs, 50.0, notes=NOTES),
        *(row for idle_s in IDLE_S for row in _short_steps(site, n, IDLE_BATCH, idle_s)),
        *(row for idle_s in IDLE_S for row in _short_steps(site, n, IDLE_BATCH, idle_s, CORE_EACH)),
        *(row for idle_s in IDLE_S for row in _short_steps(site, n, IDLE_BATCH, idle_s, max_overhead=PACED)),
        *(row for batch in SHORT_BATCHES for row in _short_steps(site, n, batch)),
        *_agents_at_rest(site),
    ]


def _short_steps(
    site: Site,
    n: int,
    batch: int,
    idle_s: float = 0.0,
    layout: tuple[int, int] = ALL_RANKS,
    *,
    max_overhead: float | None = None,
) -> list[Row]:
    """Saves of a small model, copied to peers: how long steps wait for them, what they cost.

    At every step, or as often as the job's ``max_overhead`` allows.
    """
    env = {"BENCH_ROUNDS": str(n), "BENCH_BATCH": str(batch), "BENCH_IDLE_S": str(idle_s)}
    if max_overhead is not None:
        env["BENCH_BLOCK"] = str(PACED_BLOCK)
    machines, per_machine = layout
    ranks = machines * per_machine
    with site.job(
        machines, per_machine, script=SMALL_STEPS, args=(), env=env, max_overhead=max_overhead
    ) as job:
        result = job.steps.path.with_suffix(".result")
        wait(result.exists, SHORT_STEPS_S, f"{result}", job.why_dead)
        found = json.loads(result.read_text())
    print(f"  short steps: {found}", flush=True)
    long = f"steps of {found['step_s']:.2f} s"
    use = f"host idle for {idle_s:.1f} s of them" if idle_s else "both cores busy"
    use += f", max_overhead {max_overhead}" if max_overhead is not None else ""
    notes = (
        f"{long}, {use}: the example's model, {ranks} ranks of {machines} machines; "
        f"{found['common']} saves common to all ranks, "
        f"{found['skipped']} skipped.",
        SHORT_NOTE,
    )
    what = f"{long}, {use}"
    # Of an idle host a save must cost no time at all; what it takes from a busy one depends on the number of cores.
    lost = Row(
        f"{what}, time lost to saves, {ranks} ranks",
        "%",
        found["lost"],
        1.0 if idle_s else None,
        details=found,
    )
    return [
        Row(f"{what}, held up by saves, {ranks} ranks", "% of the step", found["held"], 1.0, notes=notes),
        lost,
    ]


def _session(folder: Path) -> float:
    """Median microseconds per step, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.session_cost", str(folder), str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return float(done.stdout)


def _agents_at_rest(site: Site) -> list[Row]:
    site.wait_for_standbys(len(site.gateway.machines()))
    agents = [_agent(site, machine.name) for machine in site.gateway.machines()]
    begun = time.perf_counter()
    before = [_cpu_s(agent) for agent in agents]
    time.sleep(REST_S)
    over = time.perf_counter() - begun
    shares = [100 * (_cpu_s(agent) - first) / over for agent, first in zip(agents, before, strict=True)]
    own = [agent.memory_full_info().uss / 2**20 for agent in agents]
    known = {machine.name for machine in site.gateway.machines()}
    site.more_machines(1)
    [added] = [machine.name for machine in site.gateway.machines() if machine.name not in known]
    alone = _agent(site, added)
    with_torch = "libtorch" in Path(f"/proc/{alone.pid}/maps").read_text()
    return [
        Row("agent at rest, CPU", "% of a core", shares, 1.0),
        Row("agent at rest, resident memory", "MiB", [alone.memory_info().rss / 2**20], 80.0),
        Row("agent at rest, memory of its own where machines share a host", "MiB", own, 80.0),
        Row("agents with torch loaded", "", [int(with_torch)], 0),
    ]


def _agent(site: Site, machine: str) -> psutil.Process:
    card = json.loads((machine_dir(site.settings.home, machine) / "agent.json").read_text())
    return psutil.Process(int(card["pid"]))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
