"""Names of processes of this host, by which another process can see later whether they still live.

A pid alone is used again, and after a restart of a container so is the host's name, with small pids that soon belong to
others: a name has the boot and the time at which the process started as well.
"""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DEAD = (b"Z", b"X")


def name_of(pid: int) -> str:
    """Return ``HOST@BOOT.STARTED:PID``; ``HOST:PID`` of a process that has ended, or where the kernel shows neither."""
    host, boot, found = os.uname().nodename, _boot(), _stat(pid)
    return f"{host}@{boot}.{found[1]}:{pid}" if boot and found else f"{host}:{pid}"


def lives(name: str | None) -> bool | None:
    """Return whether the process of that name is alive; None: that cannot be seen from here.

    Names of older releases, and Prefect's own, are ``HOST:PID`` or the pid.
    """
    where, _, pid = (name or "").rpartition(":")
    host, _, mark = where.partition("@")
    if host not in ("", os.uname().nodename) or not pid.isdecimal():
        return None
    found = _stat(int(pid))
    if found is None or found[0] in _DEAD:
        return False
    return mark in ("", f"{_boot()}.{found[1]}")


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()[:8]
    except OSError:
        return ""


def _stat(pid: int) -> tuple[bytes, int] | None:
    """Return its state, and when it started, in ticks since boot; None: there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (fields[0], int(fields[19])) if len(fields) > 19 else None
