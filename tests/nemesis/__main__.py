"""``python -m tests.nemesis``: play seeds, replay one that failed, shrink it.

python -m tests.nemesis --seed 17            its history, and what was broken
python -m tests.nemesis --seed 17 --shrink   with as few of its faults as still break it
python -m tests.nemesis --seeds 0:300        many; a summary, and the seeds that failed
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of words are walked alike in every process
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.nemesis", *sys.argv[1:]])

from tests.nemesis.controls import CONTROLS
from tests.nemesis.invariants import INVARIANTS
from tests.nemesis.run import Outcome, play, shrink


def main() -> int:
    """Parse and play; 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:20", help="FIRST:END, END excluded")
    parser.add_argument("--shrink", action="store_true", help="leave out faults as long as it still fails")
    parser.add_argument(
        "--for-s", type=float, default=0.0, help="stop after so many seconds of a processor; 0: play all"
    )
    parser.add_argument("--controls", action="store_true", help="take repairs out, and see the defects found")
    arguments = parser.parse_args()
    if arguments.controls:
        return _controls()
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.shrink)
    first, _, end = arguments.seeds.partition(":")
    return _many(range(int(first), int(end)), arguments.for_s)


def _one(seed: int, smaller: bool) -> int:
    outcome = play(seed)
    if smaller and outcome.violations:
        outcome = shrink(outcome, lambda faults: play(seed, faults))
    print(*outcome.history.events, sep="\n")
    _print_outcome(outcome)
    return bool(outcome.violations)


def _controls() -> int:
    """Each schedule breaks its invariant without the repair, and none with it."""
    wrong = 0
    for name, control in CONTROLS.items():
        repaired = play(control.seed, control.faults, control.shape)
        with control.sabotage():
            found = play(control.seed, control.faults, control.shape).violations
        ok = not repaired.violations and any(each.startswith(control.breaks) for each in found)
        wrong += not ok
        print(
            f"{'found' if ok else 'NOT FOUND'}: {name}",
            *found[:2],
            *repaired.violations,
            sep="\n    ",
            flush=True,
        )
    return bool(wrong)


def _print_outcome(outcome: Outcome) -> None:
    print(
        f"\nseed {outcome.seed}: history {outcome.history.digest}, {outcome.took_s:.0f} virtual s, job {outcome.job}"
    )
    print(*(f"  fault {fault}" for fault in outcome.faults), sep="\n")
    print(*(f"  BROKEN {each}" for each in outcome.violations or ["nothing"]), sep="\n")


def _many(seeds: range, for_s: float) -> int:
    began, done = time.process_time(), Totals()
    for seed in seeds:
        outcome = play(seed)
        done.add(outcome)
        if outcome.violations:
            _print_outcome(outcome)
        if for_s and time.process_time() - began > for_s:
            break
    done.print_summary(seeds[0], time.process_time() - began)
    return bool(done.failed)


@dataclass
class Totals:
    """Totals of many runs."""

    played: int = 0
    virtual_s: float = 0.0
    incidents: int = 0
    struck: int = 0
    repeated: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    failed: list[int | str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.played += 1
        self.virtual_s += outcome.took_s
        self.incidents += outcome.incidents
        self.struck += outcome.struck
        self.repeated += outcome.repeated
        self.faults.update(fault.kind for fault in outcome.faults)
        self.jobs[outcome.job] += 1
        self.failed += [outcome.seed] if outcome.violations else []

    def print_summary(self, first: int, took_s: float) -> None:
        last = first + self.played - 1
        print(
            f"{self.played} seeds ({first} to {last}): {took_s:.0f} s of a processor, {self.virtual_s:.0f} virtual s"
        )
        print(f"incidents: {self.incidents}; jobs at the end: {dict(self.jobs)}")
        print("faults injected: " + ", ".join(f"{name} {n}" for name, n in sorted(self.faults.items())))
        print(
            f"runs struck in the middle of an act: {self.struck}; requests that came twice: {self.repeated}"
        )
        print(
            "invariants checked in each:",
            *(f"  {name}: {what}" for name, what in INVARIANTS.items()),
            sep="\n",
        )
        print(f"seeds that failed: {self.failed or 'none'}")
        if self.failed:
            print(f"replay: python -m tests.nemesis --seed {self.failed[0]} --shrink")


if __name__ == "__main__":
    sys.exit(main())
