"""A rank is stopped (SIGSTOP): seconds to the next new step; and that slow but healthy jobs raise no alarm."""

from __future__ import annotations

from benchmarks import bench_machine_lost
from benchmarks.site import Site
from benchmarks.steps import wait
from benchmarks.table import Row

SLOW_S = 8.0
"""Longer than the shortest hang window of the policy."""
AFTER_STEP = 50
"""The slow phases of :mod:`benchmarks.timed_train` lie before it."""
NOTES = (
    f"false alarms: a job whose first step, evaluation and checkpoint take {SLOW_S:.0f} s each at steps of a few "
    "hundredths, alarm window 5 s; counted are incidents.",
)


def run(site: Site, n: int) -> list[Row]:
    """Two rows: recovery from a hang, and false alarms."""
    hang = bench_machine_lost.lose(site, n, "hang-rank", "rank stopped (hang) to the next new step", 15.0)
    return [hang, _false_alarms(site)]


def _false_alarms(site: Site) -> Row:
    with site.job(2, 1, slow_s=SLOW_S) as job:

        def passed() -> bool:
            return any(line.step >= AFTER_STEP for line in job.steps.lines())

        wait(passed, 20 * SLOW_S, "the end of the slow phases", job.why_dead)
        alarms = len(site.gateway.incidents(job.spec.name))
    return Row(what="false hang alarms", unit="", samples=[alarms], target=0, notes=NOTES)
