"""The processes of one local machine: finding all of them, orphans included, and killing them for certain.

A machine's agent is started with ``HOLDFAST_MACHINE_DIR`` in its environment. What it starts inherits the
variable; ``/proc/<pid>/environ`` keeps the value that a process was executed with, whatever it does to its
own environment later. A process that was started with a cleaned environment is still found by its parents or by
the agent's session.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from holdfast.errors import UnavailableError
from holdfast.paths import ENV_MACHINE_DIR

# Two processes with one pid were created further apart than this; clock corrections shift less.
_SAME_START_S = 1.0
_PATIENCE = 6.0
"""Times the usual time to die for a process that waits for nothing but a free processor."""


@dataclass(frozen=True)
class _Entry:
    """One line of the process table; ``started`` (clock ticks since boot) distinguishes owners of one pid."""

    pid: int
    parent: int
    session: int
    started: int
    tagged: bool


def find_agent(folder: Path) -> psutil.Process | None:
    """Return the machine's agent as ``agent.json`` names it, if that very process is still alive."""
    card = _card(folder)
    try:
        if card is None:
            return None
        process = psutil.Process(card[0])
        same = abs(process.create_time() - card[1]) < _SAME_START_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (ValueError, psutil.Error):
        return None


def find_all(folder: Path) -> list[psutil.Process]:
    """Return every live process of the machine whose folder is ``folder``; never the caller itself."""
    return _find(folder, set())


def _find(folder: Path, sessions: set[int]) -> list[psutil.Process]:
    """Do as :func:`find_all`, with all processes of ``sessions``; adds the machine's sessions to it."""
    table = _table(folder)
    sessions |= _sessions(folder, table)
    agent = find_agent(folder)
    belongs = {entry.pid for entry in table if entry.tagged or entry.session in sessions}
    belongs |= {agent.pid} if agent else set()
    grew = True
    while grew:
        children = {entry.pid for entry in table if entry.parent in belongs}
        grew = not children <= belongs
        belongs |= children
    belongs.discard(os.getpid())
    found = (_guarded(entry) for entry in table if entry.pid in belongs)
    return [process for process in found if process]


def kill_all(folder: Path, *, timeout_s: float = 10.0) -> int:
    """Kill every process of the machine (SIGKILL) until none is left; return how many were killed.

    Raises:
        UnavailableError: some survived ``timeout_s`` and will not die (stuck in the kernel, or not ours to kill), or
            some have not died for much longer, on a host without free processors.
    """
    killed: set[int] = set()
    sessions: set[int] = set()
    begun = time.monotonic()
    while left := _find(folder, sessions):
        refused = [process for process in left if not _kill(process)]
        killed |= {process.pid for process in left}
        passed_s = time.monotonic() - begun
        stays = [*refused, *filter(_is_stuck, left)]
        if passed_s > (timeout_s if stays else _PATIENCE * timeout_s):
            pids = ", ".join(str(process.pid) for process in left)
            summary = f"processes {pids} of {folder.name} are still there {passed_s:.0f} s after SIGKILL"
            why = (
                "stuck in the kernel (state D) or owned by another user."
                if stays
                else "the host has no free processor for them. Try again."
            )
            raise UnavailableError(f"{summary}: {why}")
        # A process that was being forked meanwhile is found in the next round.
        psutil.wait_procs(left, timeout=0.02)
    return len(killed)


def _card(folder: Path) -> tuple[int, float] | None:
    """Return the agent's pid and time of creation, as it wrote them; None: missing or incomplete."""
    try:
        content = json.loads((folder / "agent.json").read_text())
        return int(content["pid"]), float(content["create_time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sessions(folder: Path, table: list[_Entry]) -> set[int]:
    """Return the machine's sessions: those led by one of its processes, or once led by its agent.

    A process of the machine may for a moment be in its starter's session, and the number of a dead agent may
    be another process's by now: a session counts only by a leader of the machine, or by the agent's number
    together with a member of the machine.
    """
    found = {entry.pid for entry in table if entry.tagged and entry.session == entry.pid}
    card = _card(folder)
    if card is None:
        return found
    agent = find_agent(folder)
    for entry in table:
        led = agent is not None and entry.pid == entry.session == agent.pid
        left = agent is None and entry.tagged and entry.session == card[0]
        if led or left:
            found.add(entry.session)
    return found


def _kill(process: psutil.Process) -> bool:
    """Kill it; return False where that is not ours to do."""
    try:
        process.kill()  # psutil checks that the pid was not reused
    except psutil.Error as error:
        return not isinstance(error, psutil.AccessDenied)
    return True


def _is_stuck(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_DISK_SLEEP)
    except psutil.Error:
        return False


def _table(folder: Path) -> list[_Entry]:
    """List all live processes of this host, zombies left out; read once, as every read costs microseconds."""
    wanted = os.fsencode(f"\0{ENV_MACHINE_DIR}={folder}\0")
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [entry for pid in pids if (entry := _entry(pid, wanted))]


def _entry(pid: int, wanted: bytes) -> _Entry | None:
    try:
        # Fields follow the command's closing parenthesis: state, ppid, pgrp, session, ...; 20th is starttime.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    try:
        tagged = wanted in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        tagged = False  # another user's
    return _Entry(pid, int(fields[1]), int(fields[3]), int(fields[19]), tagged)


def _guarded(entry: _Entry) -> psutil.Process | None:
    """Return a handle on the process of ``entry``; None when its pid has another owner by now."""
    try:
        process = psutil.Process(entry.pid)
    except psutil.Error:
        return None
    now = _entry(entry.pid, b"\0")
    return process if now and now.started == entry.started else None
