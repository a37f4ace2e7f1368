"""Pid files ``HOME/run/<service>.json``: {pid, create_time, start}, so that a pid used again is not mistaken.

``create_time`` moves with the wall clock, which may be set; ``start`` does not, and is not there in files of earlier
releases.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil

from holdfast import process_name
from holdfast.paths import run_dir

_SAME_S = 1.0


def path(home: Path, name: str) -> Path:
    """Return the file of one service."""
    return run_dir(home) / f"{name}.json"


def write(home: Path, name: str, pid: int) -> None:
    """Note that ``name`` runs as ``pid``."""
    file = path(home, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    created = psutil.Process(pid).create_time()
    new.write_text(json.dumps({"pid": pid, "create_time": created, "start": process_name.mark_of(pid)}))
    os.replace(new, file)


def remove(home: Path, name: str) -> None:
    """Forget it."""
    path(home, name).unlink(missing_ok=True)


def running(home: Path, name: str) -> psutil.Process | None:
    """Return the live process of ``name``, or None."""
    try:
        record = json.loads(path(home, name).read_text())
        process = psutil.Process(int(record["pid"]))
        if start := record.get("start"):
            same = start == process_name.mark_of(process.pid)
        else:
            same = abs(process.create_time() - float(record["create_time"])) < _SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, psutil.Error):
        return None
