"""A rank is killed again and again: how much of the wall-clock time makes steps, beside other launchers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import peers, torchft_peer
from benchmarks.peers import Peer
from benchmarks.site import KEPT_SCRIPT, SCRIPT, START_S, STEP_S, Site
from benchmarks.steps import Line, Steps, TooLateError
from benchmarks.table import Row

RANKS = 8
LAYOUT = (4, 2)
EVERY_S = {60.0: 95.0, 30.0: 90.0, 15.0: 80.0}
"""Seconds between two kills -> least productive share wanted, in percent."""
KILLS = 6
ENV_KILLS = "BENCH_KILLS"
"""Fewer kills each, for a quick run; the page gives their number."""
ENV_EVERY_S = "BENCH_EVERY_S"
"""Some of the intervals, separated by commas."""
CALM_S = 15.0
PEERS_SCRIPT = "kill_loop_train.py"
"""Of the launchers that keep no state."""
OURS = {"new processes": SCRIPT, "processes kept": KEPT_SCRIPT}
"""How the other ranks go on after a kill."""
ARGS = ("--steps", "1000000", "--step-seconds", str(STEP_S))
NOTES = (
    "kill loop: SIGKILL of one of 8 ranks at a fixed interval, in turn. Productive: distinct steps times the median "
    "step of the same run, as a share of the wall-clock time from the first kill on; steps that are done again do not "
    "count twice, and those of fewer ranks count for as much as these are. Holdfast diagnoses each time and resumes "
    "from memory; processes kept: the same script under holdfast.run. torchrun, ft_launcher and dlrover-run run the "
    "same model with torch.save of rank 0 every 10 steps, loaded at each start; torchft runs 8 replica groups of one "
    "rank, each restarted by a loop as soon as it ends, and counts a step when the lighthouse's quorum committed it; "
    "with its pure Python DDP, since the survivors' processes end in an assertion with the other.",
)


def run(site: Site, n: int) -> list[Row]:
    """Rows for each interval; the number of kills is the same for all."""
    here = peers.available()
    chosen = [float(each) for each in os.environ.get(ENV_EVERY_S, "").split(",") if each] or list(EVERY_S)
    return [row for every_s in chosen for row in _interval(site, n, every_s, EVERY_S[every_s], here)]


def _interval(site: Site, n: int, every_s: float, goal: float, here: Sequence[Peer]) -> list[Row]:
    kills = int(os.environ.get(ENV_KILLS, KILLS))
    ours: dict[str, list[float]] = {name: [] for name in OURS}
    theirs: dict[str, list[float]] = {peer.name: [] for peer in (*peers.PEERS, torchft_peer.PEER)}
    failed: list[str] = []
    for _ in range(n):
        for name, script in OURS.items():
            with site.job(*LAYOUT, script=script) as job:
                ours[name].append(_share(job.steps, every_s, kills, job.why_dead))
            print(f"  every {every_s:.0f} s: holdfast, {name} {ours[name][-1]:.1f} %", flush=True)
        for peer in (*here, *torchft_peer.available()):
            try:
                with peer.running(site.folder(), RANKS, site.code / PEERS_SCRIPT, ARGS) as started:
                    started.steps.wait_for_calm(RANKS, START_S, started.why_dead)
                    theirs[peer.name].append(_share(started.steps, every_s, kills, started.why_dead))
                print(f"  every {every_s:.0f} s: {peer.name} {theirs[peer.name][-1]:.1f} %", flush=True)
            except TooLateError as error:
                failed.append(f"{peer.name}: {str(error)[:300]}")
                print(f"  {failed[-1]}", file=sys.stderr, flush=True)
    return [
        Row(
            what=f"lost of the wall-clock time, a rank killed every {every_s:.0f} s, {RANKS} ranks, {name}",
            unit="%",
            samples=[100 - share for share in shares],
            target=100 - goal,
            peers={peer: [100 - share for share in found] for peer, found in theirs.items()},
            ratio_target=1.0,
            notes=NOTES,
            details={"kills": kills, "peers that did not come back": failed},
        )
        for name, shares in ours.items()
    ]


def _share(steps: Steps, every_s: float, kills: int, alive: Callable[[], str | None]) -> float:
    """Percent of the wall-clock time that made steps, from the first kill to an interval after the last."""
    time.sleep(CALM_S)
    begin = time.time()
    for number in range(kills):
        with contextlib.suppress(ProcessLookupError, StopIteration):
            os.kill(steps.pid(number % RANKS), signal.SIGKILL)
        time.sleep(max(0.0, begin + (number + 1) * every_s - time.time()))
        if why := alive():
            raise TooLateError(why)
    return productive(steps.lines(), begin, time.time())


def productive(lines: Sequence[Line], begin: float, end: float) -> float:
    """Percent of ``begin`` to ``end`` that new steps took at their usual length.

    The usual length is the median of the whole run: recoveries are few among the steps, and a host that is faster or
    slower later than at the beginning changes it.
    """
    firsts: dict[int, Line] = {}
    for line in lines:
        if line.step and line.share:
            firsts.setdefault(line.step, line)
    made = [firsts[step] for step in sorted(firsts)]
    usual_s = statistics.median(
        (later.at - sooner.at) / later.share for sooner, later in itertools.pairwise(made)
    )
    before = max((line.step for line in made if line.at <= begin), default=0)
    new = sum(line.share for line in made if begin < line.at <= end and line.step > before)
    return min(100.0, 100 * new * usual_s / (end - begin))
