"""A machine dies, agent, memory and disk: seconds to the next new step on a standby."""

from __future__ import annotations

from benchmarks import breakdown
from benchmarks.site import MACHINES, RECOVER_S, STANDBYS, Site
from benchmarks.table import Row
from holdfast.inject import inject

FAULT = "kill-machine"


def run(site: Site, n: int) -> list[Row]:
    """One job; the machine of another slot dies in each round, then the pool is filled again."""
    return [lose(site, n, FAULT, "machine lost to the next new step on a standby", 2.5)]


def lose(site: Site, n: int, fault: str, what: str, target_s: float, *, standbys: int = STANDBYS) -> Row:
    """``n`` rounds of a fault that costs a machine, each on a job of its own; without standbys it goes on smaller."""
    machines, ranks, least = (MACHINES, 2, 0) if standbys else (MACHINES + STANDBYS, 1, 2)
    samples: list[float] = []
    spans: list[breakdown.Spans] = []
    for turn in range(n):
        site.wait_for_standbys(MACHINES + STANDBYS)
        with site.job(machines, ranks, least=least) as job:
            at = inject(site.settings.home, fault, job.machines[turn % machines]).at
            new = job.steps.wait_for_new(at, RECOVER_S, job.why_dead, beyond=True)
            spans.append(breakdown.of(job.closed_incident(), at, new))
        samples.append(new - at)
        print(f"  {fault} {turn + 1}/{n}: {samples[-1]:.2f} s", flush=True)
    where = breakdown.median(spans)
    print(breakdown.text(where), flush=True)
    return Row(what=what, unit="s", samples=samples, target=target_s, details={"breakdown": where})
