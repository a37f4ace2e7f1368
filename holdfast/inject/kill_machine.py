"""A machine loses power: its agent and all processes die, and its memory and disk are gone for good."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from holdfast.drivers import processes
from holdfast.errors import UnavailableError
from holdfast.inject.target import Target
from holdfast.paths import shm_dir

LONGEST_S = 10.0


def strike(target: Target, rank: int | None) -> None:
    """Kill the whole process tree, then delete what the machine held.

    Raises:
        UnavailableError: a process does not die, or something cannot be removed.
    """
    processes.kill_all(target.folder)
    for folder in (shm_dir(target.home, target.machine), target.folder):
        _erase(folder)


def _erase(folder: Path) -> None:
    """Remove a folder. A thread of a killed process may end a moment after it, and make a file until then."""
    deadline = time.monotonic() + LONGEST_S
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline and folder.exists():  # thousands of files take longer on a busy host
            raise UnavailableError(f"{folder} cannot be removed: something writes to it, or it is not ours")
