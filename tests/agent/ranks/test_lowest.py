"""Spare processes run at the lowest priority, and get their normal one back before they are used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.ranks.lowest import LOWEST

USUAL = 3
BODY = """
import json, multiprocessing, os, sys, threading
from holdfast.agent.ranks import rank_main

{before}
done, seen = threading.Event(), {{}}

def now():
    return [os.getpriority(os.PRIO_PROCESS, each.native_id) for each in threading.enumerate()] + {session}

def touch():
    threading.Thread(target=done.wait, daemon=True).start()
    seen["settling"] = now()

def body():
    seen["used"] = now()

rank_main._touch = touch
theirs, ours = multiprocessing.Pipe(duplex=False)
settled, settles = multiprocessing.Pipe(duplex=False)
ours.send((body, ()))
rank_main.wait(theirs, settles)
print(json.dumps(seen))
"""


OF_SESSION = '[int(open("/proc/self/autogroup").read().split()[-1])]'


def seen(before: str, *, leads: bool = False) -> dict[str, list[int]]:
    """Run a spare's body in a process of its own; return the nice values of its threads, and of a session it leads."""
    done = subprocess.run(
        [sys.executable, "-c", BODY.format(before=before, session=OF_SESSION if leads else "[]")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        start_new_session=leads,
        preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, USUAL),
    )
    assert not done.returncode, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority takes a privilege")
def test_it_settles_at_the_lowest_priority_and_is_raised_before_it_is_used() -> None:
    """With each thread that the rehearsal has begun."""
    assert seen("") == {"settling": [LOWEST] * 2, "used": [USUAL] * 2}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's privileges")
def test_nothing_is_lowered_that_could_not_be_raised_again() -> None:
    """A rank must not train at the lowest priority."""
    assert seen("os.setuid(65534)") == {"settling": [USUAL] * 2, "used": [USUAL] * 2}


@pytest.mark.skipif(os.geteuid() != 0, reason="raising a priority takes a privilege")
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this Linux does not group sessions")
def test_so_does_its_session() -> None:
    """Where a nice value counts within a session only."""
    assert seen("", leads=True) == {"settling": [LOWEST] * 3, "used": [USUAL] * 2 + [0]}
    # Raised again without privileges.
    unprivileged = seen("os.setuid(65534); import ctypes; ctypes.CDLL(None).prctl(4, 1)", leads=True)
    assert unprivileged == {"settling": [USUAL] * 2 + [LOWEST], "used": [USUAL] * 2 + [0]}
