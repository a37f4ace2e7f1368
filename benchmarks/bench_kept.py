"""A rank or a machine dies, and the other ranks keep their processes: seconds to the next new step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import breakdown
from benchmarks.site import KEPT_SCRIPT, MACHINES, RECOVER_S, STANDBYS, RunningJob, Site
from benchmarks.table import Row
from holdfast.inject import inject

RANKS_EACH = 2
NOTES = (
    "kept processes: as the rows above, with the same script under holdfast.run: 8 ranks on 4 machines, from the fault "
    "to a step beyond all steps done. A rank's death is diagnosed beside the training, in the default tiers. A run in "
    "which another process than those that died was replaced is named in the results.",
)


def run(site: Site, n: int) -> list[Row]:
    """One row for each fault; each on jobs of its own."""

    def kill(job: RunningJob, turn: int) -> float:
        return job.steps.kill(turn % job.spec.world_size)

    def lose(job: RunningJob, turn: int) -> float:
        return inject(site.settings.home, "kill-machine", job.machines[turn % MACHINES]).at

    return [
        _row(
            site,
            n,
            "SIGKILL of a rank to the next new step, 7 of 8 processes kept",
            kill,
            target_s=0.5,
            die=1,
        ),
        _row(
            site,
            n,
            "machine lost to the next new step, 6 of 8 processes kept",
            lose,
            target_s=0.8,
            die=RANKS_EACH,
        ),
    ]


def _row(
    site: Site, n: int, what: str, fault: Callable[[RunningJob, int], float], *, target_s: float, die: int
) -> Row:
    samples: list[float] = []
    spans: list[breakdown.Spans] = []
    more: list[str] = []
    for turn in range(n):
        site.wait_for_standbys(MACHINES + STANDBYS)
        with site.job(MACHINES, RANKS_EACH, script=KEPT_SCRIPT) as job:
            before = _pids(job)
            at = fault(job, turn)
            new = job.steps.wait_for_new(at, RECOVER_S, job.why_dead, beyond=True)
            spans.append(breakdown.of(job.closed_incident(), at, new))
            after = _pids(job)
        samples.append(new - at)
        replaced = sorted(rank for rank, pid in before.items() if after.get(rank) != pid)
        if len(replaced) != die:
            more.append(f"run {turn + 1}: the processes of ranks {replaced} were replaced")
        print(f"  {what}: {turn + 1}/{n}: {samples[-1]:.2f} s, new processes: {replaced}", flush=True)
    where = breakdown.median(spans)
    print(breakdown.text(where), flush=True)
    return Row(
        what=what,
        unit="s",
        samples=samples,
        target=target_s,
        notes=NOTES,
        details={"breakdown": where, "more processes replaced than died": more},
    )


def _pids(job: RunningJob) -> Mapping[int, int]:
    """Process of each rank, as it wrote it down when it last began."""
    return {line.rank: line.pid for line in job.steps.lines() if line.step == 0}
