"""A machine loses power: its agent and all processes die, and its memory and disk are gone for good."""

from __future__ import annotations

import shutil

from holdfast.drivers import processes
from holdfast.inject.target import Target
from holdfast.paths import shm_dir


def strike(target: Target, rank: int | None) -> None:
    """Kill the whole process tree, then delete what the machine held."""
    processes.kill_all(target.folder)
    shutil.rmtree(shm_dir(target.home, target.machine), ignore_errors=True)
    shutil.rmtree(target.folder, ignore_errors=True)
