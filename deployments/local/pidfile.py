"""Pid files ``HOME/run/<service>.json``: {pid, create_time, start}, so that a pid used again is not mistaken.

``create_time`` moves with the wall clock, which may be set; ``start`` does not, and is not there in files of earlier
releases.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil

from holdfast.agent.ranks import proc
from holdfast.paths import run_dir

_SAME_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def path(home: Path, name: str) -> Path:
    """Return the file of one service."""
    return run_dir(home) / f"{name}.json"


def write(home: Path, name: str, pid: int) -> None:
    """Note that ``name`` runs as ``pid``."""
    file = path(home, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    created = psutil.Process(pid).create_time()
    new.write_text(json.dumps({"pid": pid, "create_time": created, "start": _start(pid)}))
    os.replace(new, file)


def remove(home: Path, name: str) -> None:
    """Forget it."""
    path(home, name).unlink(missing_ok=True)


def running(home: Path, name: str) -> psutil.Process | None:
    """Return the live process of ``name``, or None."""
    try:
        told = json.loads(path(home, name).read_text())
        process = psutil.Process(int(told["pid"]))
        if start := told.get("start"):
            same = start == _start(process.pid)
        else:
            same = abs(process.create_time() - float(told["create_time"])) < _SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, psutil.Error):
        return None


def _start(pid: int) -> str:
    """Return the boot and the ticks from it to the process's start, as no other of that pid has; empty: not known."""
    _, fields = proc.stat(pid)
    try:
        return f"{_BOOT_ID.read_text().strip()}:{int(fields[19])}" if fields else ""
    except OSError:
        return ""
