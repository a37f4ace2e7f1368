"""Names of processes of this host, by which another process can see later whether they still live.

A pid alone is used again, and after a restart of a container so is the host's name, with small pids that soon belong to
others: a name has the boot and the time at which the process started as well.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.agent.ranks import proc

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def name_of(pid: int) -> str:
    """Return ``HOST@BOOT.STARTED:PID``; ``HOST:PID`` of a process that has ended, or where the kernel shows neither."""
    return "@".join(filter(None, (os.uname().nodename, mark_of(pid)))) + f":{pid}"


def lives(name: str | None) -> bool | None:
    """Return whether the process of that name is alive; None: that cannot be seen from here.

    Names of older releases, and Prefect's own, are ``HOST:PID`` or the pid.
    """
    where, _, pid = (name or "").rpartition(":")
    host, _, mark = where.partition("@")
    if host not in ("", os.uname().nodename) or not pid.isdecimal():
        return None
    found = proc.look(int(pid))
    if found is None or found.holds_nothing:
        return False
    return mark in ("", _mark(found))


def mark_of(pid: int) -> str:
    """Return the boot, and the ticks from it to the process's start, as no other of that pid has; empty: not known."""
    found = proc.look(pid)
    return _mark(found) if found is not None else ""


def boot(file: Path = BOOT_ID) -> str:
    """Return what distinguishes this boot of the host from all others; empty: the kernel does not show it."""
    try:
        return file.read_text().strip()[:8]
    except OSError:
        return ""


def _mark(process: proc.KnownProcess) -> str:
    now = boot()
    return f"{now}.{process.started}" if now else ""
