"""A machine is lost and no other stands by; and a planned change of size: seconds to the next new step."""

from __future__ import annotations

import time

from benchmarks import breakdown
from benchmarks.bench_machine_lost import FAULT, lose
from benchmarks.site import RECOVER_S, STANDBYS, Site
from benchmarks.table import Row

BEFORE, AFTER = 3, 2


def run(site: Site, n: int) -> list[Row]:
    """A job on all machines loses one of them; then one of three machines is scaled to two."""
    site.ledger.set_pool(0, "benchmarks: nothing stands by")
    try:
        shrunk = lose(
            site, n, FAULT, "machine lost with no standby to the next new step, smaller", 3.0, standbys=0
        )
    finally:
        site.ledger.set_pool(STANDBYS, "benchmarks")
    return [shrunk, *scale(site, n)]


def scale(site: Site, n: int) -> list[Row]:
    """``n`` rounds of a planned change, each on a job of its own."""
    asked: list[float] = []
    paused: list[float] = []
    spans: list[breakdown.Spans] = []
    for turn in range(n):
        with site.job(BEFORE, 1, least=AFTER) as job:
            at = time.time()
            site.gateway.scale(job.spec.name, AFTER, "benchmark")
            new = job.steps.wait_for_new(at, RECOVER_S, job.why_dead, beyond=True)
            old = {line.pid for line in job.steps.lines() if line.step == 0 and line.at <= at}
            last = max(line.at for line in job.steps.lines() if line.pid in old)
            spans.append(breakdown.of(job.closed_incident(), at, new))
        asked.append(new - at)
        paused.append(new - last)
        print(f"  scale {turn + 1}/{n}: {asked[-1]:.2f} s, paused {paused[-1]:.2f} s", flush=True)
    where = breakdown.median(spans)
    print(breakdown.text(where), flush=True)
    what = f"planned scale {BEFORE} to {AFTER}"
    return [
        Row(
            what=f"{what}, asked to the next new step", unit="s", samples=asked, details={"breakdown": where}
        ),
        Row(what=f"{what}, training paused", unit="s", samples=paused, target=3.0),
    ]
