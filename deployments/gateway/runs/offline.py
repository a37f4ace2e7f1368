"""Playbooks while Prefect is away: a process of its own per attempt."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from holdfast import process_name
from holdfast.deployments.gateway.runs.flow_runs import PlaybookRun, RunPhase
from holdfast.deployments.local import pidfile
from holdfast.models.alert import Incident
from holdfast.paths import log_dir

_PREFIX = "offline:"


_children: list[subprocess.Popen[bytes]] = []


def spawn(home: Path, incident: Incident) -> str:
    """Start the playbook of the incident's attempt; it outlives the gateway. Returns ``offline:PROCESS:STARTED``.

    The process of an earlier attempt is ended: whatever it does next is refused, and it takes time from this one.
    """
    name = f"offline-{incident.id}"
    if (earlier := pidfile.running(home, name)) is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            earlier.kill()
    # Asking the ended ones for their status takes them out of the process table.
    _children[:] = [child for child in _children if child.poll() is None]
    log_dir(home).mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "holdfast.deployments.worker.offline",
        incident.id,
        str(incident.attempt),
    ]
    with (log_dir(home) / f"{name}-{incident.attempt}.log").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HOLDFAST_HOME": str(home.resolve())},
        )
    _children.append(process)
    with contextlib.suppress(OSError):  # the run goes on where the disk is full
        pidfile.write(home, name, process.pid)  # `down` ends it
    return f"{_PREFIX}{process_name.name_of(process.pid)}:{psutil.Process(process.pid).create_time():.2f}"


def is_offline(run_id: str) -> bool:
    """Return whether the id is one of :func:`spawn`."""
    return run_id.startswith(_PREFIX)


def read(run_id: str) -> PlaybookRun:
    """Return its process as a run: running, or ended (the incident shows whether well). One of another host runs."""
    pid, _, started = run_id.removeprefix(_PREFIX).rpartition(":")
    alive = lives(pid, started)
    over = alive is False
    return PlaybookRun(
        id=run_id,
        phase=RunPhase.ENDED if over else RunPhase.RUNNING,
        state="Offline process ended" if over else "Offline",
        since=0.0 if over else float(started),
        alive=alive,
    )


def lives(pid: str | None, started: str = "") -> bool | None:
    """Return whether a process is alive, if that can be seen from here.

    Args:
        pid: its name (:mod:`holdfast.process_name`); None is returned for one of another host.
        started: distinguishes it from a later process with the same number, where its name does not.
    """
    if "@" in (pid or "") or not started:
        return process_name.lives(pid)  # its name distinguishes it
    if (alive := process_name.lives(pid)) is not True:
        return alive
    try:
        return started == f"{psutil.Process(int((pid or '').rpartition(':')[2])).create_time():.2f}"
    except psutil.Error:
        return False
