"""Journal of the changes that lasting faults make on this host, written before each change so that any run can undo it.

One file per fault, held locked by the process that injected it. A file that no process holds was left by one that was
killed: the next injection undoes it, as `holdfast inject --undo` does with all.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TextIO

import psutil
from pydantic import Field

from holdfast.errors import UnavailableError
from holdfast.inject import cgroup
from holdfast.models.base import Frozen

_RUN_S = 10.0
MARK = "holdfast-inject"
"""Source of the file systems that faults mount."""
HANDLE = "1f5:"
"""Handle of the queues that faults put before an interface."""


class Mounted(Frozen):
    """A file system of ours over a folder; what else is mounted there stays."""

    kind: Literal["mounted"] = "mounted"
    folder: Path

    def undo(self) -> None:
        """Take it off, as long as ours is the topmost."""
        while _source(self.folder) == MARK and _output("umount", "-l", str(self.folder)) is not None:
            pass


class Queue(Frozen):
    """A queue of ours before an interface; ``tc`` reaches it."""

    kind: Literal["queue"] = "queue"
    tc: tuple[str, ...]
    device: str

    def undo(self) -> None:
        """Remove it; one that is not ours stays."""
        shown = _output(*self.tc, "qdisc", "show", "dev", self.device) or ""
        if any(f" {HANDLE} root" in line for line in shown.splitlines()):
            _output(*self.tc, "qdisc", "del", "dev", self.device, "root")


class ControlGroup(Frozen):
    """A control group: its processes go back to where they came from, then it is removed."""

    kind: Literal["group"] = "group"
    folder: Path
    parent: Path

    def undo(self) -> None:
        """Put them back."""
        cgroup.dissolve(self.folder, self.parent)


class Link(Frozen):
    """A symbolic link of ours."""

    kind: Literal["link"] = "link"
    path: Path
    to: Path

    def undo(self) -> None:
        """Remove it, if it is that one."""
        with contextlib.suppress(OSError):
            if self.path.readlink() == self.to:
                self.path.unlink()


class StoppedProcess(Frozen):
    """A process that was stopped."""

    kind: Literal["stopped"] = "stopped"
    pid: int
    created: float

    def undo(self) -> None:
        """Let it go on, if it is that very process."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) < 1.0:
                process.resume()


Change = Mounted | Queue | ControlGroup | Link | StoppedProcess


class JournalEntry(Frozen):
    """One fault in effect, or left over."""

    fault: str
    machine: str
    changes: tuple[Change, ...] = Field(default=())


class Journal:
    """The journal of one project."""

    def __init__(self, home: Path) -> None:
        self._folder = home.resolve() / "faults"

    @contextlib.contextmanager
    def holding(self, fault: str, machine: str) -> Iterator[Pen]:
        """Hold an entry for the time of a fault; its recorded changes are undone at the end, whatever happened."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{fault}-{machine}-{uuid.uuid4().hex[:8]}.json"
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            pen = Pen(file, fault, machine)
            try:
                yield pen
            finally:
                _undo(pen.entry)
                path.unlink(missing_ok=True)

    def undo(self, *, left_over: bool) -> list[str]:
        """Undo the entries ``left_over`` by killed processes, or all; return descriptions of them for people."""
        undone = []
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if left_over:
                        continue
                undone.append(self._undo_file(path, file))
        return undone

    @staticmethod
    def _undo_file(path: Path, file: TextIO) -> str:
        try:
            entry = JournalEntry.model_validate(json.load(file))
        except ValueError:
            entry = None  # killed before the first change was written down, so nothing was changed
        if entry is not None:
            _undo(entry)
        path.unlink(missing_ok=True)
        return f"{entry.fault} on {entry.machine}" if entry else path.stem


class Pen:
    """Writes changes down, before they are made."""

    def __init__(self, file: TextIO, fault: str, machine: str) -> None:
        self._file = file
        self.entry = JournalEntry(fault=fault, machine=machine)

    def note(self, change: Change) -> None:
        """Record a change; it is on the disk when this returns."""
        self.entry = self.entry.model_copy(update={"changes": (*self.entry.changes, change)})
        self._file.seek(0)
        self._file.write(self.entry.model_dump_json())
        self._file.truncate()
        self._file.flush()
        os.fsync(self._file.fileno())


def _undo(entry: JournalEntry) -> None:
    for change in reversed(entry.changes):
        change.undo()


def _output(*words: str) -> str | None:
    """Return the output of a command; None: it failed, so there is nothing to undo any more."""
    try:
        done = _run(words)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, check=False, timeout=_RUN_S, text=True)


def _source(folder: Path) -> str:
    """Return the source of the topmost file system that is mounted at ``folder``; empty: none is."""
    found = ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, where, *_ = line.split()
        if where.replace("\\040", " ") == str(folder):
            found = source
    return found


def need(words: tuple[str, ...], why: str) -> None:
    """Run a command that makes a change.

    Raises:
        UnavailableError: it is not installed, or the kernel refused; the message names what is needed.
    """
    try:
        done = _run(words)
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{words[0]}: {error}; {why}") from None
    if done.returncode:
        raise UnavailableError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}; {why}")
