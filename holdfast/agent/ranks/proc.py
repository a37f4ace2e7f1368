"""Processes as ``/proc`` shows them: cheap enough to read in the middle of a recovery."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_KERNEL_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
_DEAD = ("Z", "X")
_ENV_END = 48
"""Address at which the environment ends: the 51st field of stat, counted from the state."""
_STOPPED = ("T", "t")


@dataclass(frozen=True)
class KnownProcess:
    """One process; ``started`` (clock ticks since boot) distinguishes owners of one pid."""

    pid: int
    parent: int
    state: str
    started: int
    name: str

    @property
    def holds_nothing(self) -> bool:
        """Whether it has ended, reaped or not: a zombie has neither memory nor files nor ports."""
        return self.state in _DEAD

    def send(self, number: int) -> None:
        """Send it a signal; never to another process that has its pid by now."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # ended
            return
        try:
            now = look(self.pid)
            if now is not None and now.started == self.started:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state})"


def look(pid: int) -> KnownProcess | None:
    """Return the process; None: there is none."""
    name, fields = stat(pid)
    if not fields:
        return None
    return KnownProcess(
        pid, int(fields[1]), fields[0].decode(), int(fields[19]), name.decode(errors="replace")
    )


def stat(pid: int, thread: int | None = None) -> tuple[bytes, list[bytes]]:
    """Return the kernel's record of a process: its name, and the fields after it; no fields: there is no such process.

    The fields are state, ppid, ...; the 20th is starttime. ``thread``: the record of one of its threads.
    """
    part = "" if thread is None else f"/task/{thread}"
    try:
        with open(f"/proc/{pid}{part}/stat", "rb") as file:
            name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
    except OSError:
        return b"", []
    return name, rest.split()


def waited_s(pid: int) -> float:
    """Return seconds for which a process's main thread was ready to run without a processor; 0 where none are shown."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def everyone() -> Iterator[int]:
    """Return every pid of this host."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def children(pid: int) -> list[int]:
    """Return children from the kernel's own list; psutil would read every process of the machine."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        if not _KERNEL_LISTS_CHILDREN:
            return [child.pid for child in psutil.Process(pid).children()]
        found = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        return [int(child) for child in found]
    return []


def descendants(pids: Iterable[int]) -> list[KnownProcess]:
    """Return all processes below ``pids``."""
    found: list[KnownProcess] = []
    ahead = list(pids)
    while ahead:
        below = [known for child in children(ahead.pop()) if (known := look(child))]
        ahead += [known.pid for known in below]
        found += below
    return found


def is_stuck(pid: int) -> bool:
    """Return whether a thread of it sleeps in the kernel and takes no signal (state D).

    What was killed and is not stuck waits for a processor in order to end, or for its parent to notice.
    """
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return False
    return any(fields[:1] == [b"D"] for thread in threads for _, fields in [stat(pid, thread)])


def environment(pid: int) -> bytes:
    """Return the environment that it was executed with, as ``\\0NAME=value\\0...``; empty: ended, or another user's."""
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def command(pid: int) -> bytes:
    """Return its command line, words ended by zeros; empty: ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def has_environment(pid: int) -> bool:
    """Return whether it has one, empty or not: in the moment of an exec it has none yet, a zombie none any more."""
    _, fields = stat(pid)
    return bool(fields) and fields[_ENV_END] != b"0"


def maps(pid: int) -> bytes:
    """Return its memory mappings; empty: ended, or another user's."""
    try:
        return Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return b""


def handles(pid: int, number: int) -> bool:
    """Return whether a signal would run code of the process, and could: not while it is stopped."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    caught = int(fields.get("SigCgt", "0"), 16)
    return fields.get("State", "")[:1] not in (*_DEAD, *_STOPPED) and bool(caught >> (number - 1) & 1)
