"""Seeds of the nemesis, and proof that a run can be repeated. In processes of their own: time is replaced in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nemesis import patches
from tests.nemesis.scheduler import Killed, Scheduler

ROOT = Path(__file__).parents[2]
IN_CI = ("0:150", "150:300")
"""Each in a process of its own."""
LONGEST_S = 150
"""Of a processor, for each of them: a slow host plays as many seeds as go into that, and prints their number."""
LEAST = 30
"""Seeds that every host plays of each."""


def nemesis(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(
        [sys.executable, "-m", "tests.nemesis", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.timeout(2000)
@pytest.mark.e2e
@pytest.mark.parametrize("seeds", IN_CI)
def test_seeds_break_no_invariant(seeds: str) -> None:
    """Whatever the faults, no invariant is broken; the injected faults are printed."""
    done = nemesis("--seeds", seeds, "--for-s", str(LONGEST_S), timeout_s=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    played = re.search(r"^(\d+) seeds", done.stdout, re.MULTILINE)
    assert played
    assert int(played[1]) >= LEAST


def test_a_seed_has_one_history() -> None:
    """Two processes that play one seed write the same history, errors that name a process included."""
    first, second = (nemesis("--seed", "9", timeout_s=280).stdout for _ in range(2))
    assert "rank-start" in first
    assert first == second


@pytest.mark.e2e
def test_each_repair_that_is_taken_out_is_missed() -> None:
    """The schedules of known defects break an invariant without their repair, and none with it."""
    done = nemesis("--controls", timeout_s=1800)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_what_a_run_left_behind_waits_for_nothing() -> None:
    """The collector closes it after the run, when no time passes: it waited without end."""
    scheduler = Scheduler(1)
    leftover = (patches._Thread(scheduler, lambda: None).join, lambda: patches._Event(scheduler).wait(1.0))
    scheduler.end()
    for waits in leftover:
        with pytest.raises(Killed):
            waits()
