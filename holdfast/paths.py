"""Where a local machine keeps its things: one place that knows the folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

SHM = Path("/dev/shm")
ENV_MACHINE_DIR = "HOLDFAST_MACHINE_DIR"
"""Variable of every process of a machine (its folder), so that a driver finds them all."""
ENV_AGENT = "HOLDFAST_AGENT"
"""In the environment of all that an agent starts: its machine's folder and its incarnation, see :func:`of_agent`."""


def machine_dir(home: Path, machine: str) -> Path:
    """Return the machine's own disk: logs, checkouts, copies of shards. Gone when the machine is."""
    return home.resolve() / "machines" / machine


def shm_root(home: Path) -> Path:
    """Return the shared memory folder of all local machines of one project."""
    return SHM / f"holdfast-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}"


def shm_dir(home: Path, machine: str) -> Path:
    """Return the machine's memory for checkpoint shards. Gone when the machine is."""
    return shm_root(home) / machine


def of_agent(folder: Path, incarnation: str) -> str:
    """Return the value of :data:`ENV_AGENT`."""
    return f"{folder}:{incarnation}"


def run_dir(home: Path) -> Path:
    """Return the folder of pid files and sockets of the embedded services."""
    return home.resolve() / "run"


def log_dir(home: Path) -> Path:
    """Return the folder of logs of the embedded services."""
    return home.resolve() / "logs"
