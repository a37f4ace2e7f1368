"""Reads of hostile input in a process of their own, whose memory and time are bounded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping


def outcomes_of(script: str, inputs: Mapping[str, bytes], timeout_s: float) -> dict[str, str]:
    """Run ``script`` with the pickled ``inputs`` at its standard input; return its lines ``name: outcome``."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(dict(inputs)),
        capture_output=True,
        check=False,
        timeout=timeout_s,
    )
    outcomes = dict(line.split(": ", 1) for line in done.stdout.decode().splitlines() if ": " in line)
    assert done.returncode == 0, (outcomes, done.stderr.decode()[-500:])
    return outcomes
