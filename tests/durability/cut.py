"""Power loss, modelled: what a folder may hold afterwards, given what was synced before.

What counts is what a file system promises: the content of a file is on the disk when the file was synced, a name (also
a new one after a rename) when its folder was. Anything else may be there or not, whichever comes first. At each sync,
rename and link the recorder notes the four extremes: names as synced or as they are, and contents as synced or as they
are. A file of which nothing was synced is empty.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

Inode = int


@dataclass(frozen=True)
class Entry:
    """A file, folder (no content) or link (its target)."""

    kind: str
    mode: int
    content: bytes = b""


@dataclass(frozen=True)
class State:
    """A possible state of a folder, and the lines that had been acknowledged by then."""

    acknowledged: tuple[str, ...]
    entries: tuple[tuple[str, Entry], ...]

    def lay_out(self, folder: Path) -> None:
        """Make it so, in the new ``folder``."""
        folder.mkdir()
        for name, entry in self.entries:
            path = folder / name
            if entry.kind == "folder":
                path.mkdir()
            elif entry.kind == "link":
                path.symlink_to(os.fsdecode(entry.content))
            else:
                path.write_bytes(entry.content)
                path.chmod(entry.mode)


@dataclass
class Recorder:
    """Follows one folder."""

    folder: Path
    acknowledged: list[str] = field(default_factory=list)
    states: dict[State, None] = field(default_factory=dict)
    """All that there may be, each once, in order."""
    _names: dict[Inode, dict[str, Inode]] = field(default_factory=dict)
    """Of folders, as synced."""
    _contents: dict[Inode, bytes] = field(default_factory=dict)
    """Of files, as synced."""
    _held: dict[Inode, tuple[int, Entry]] = field(default_factory=dict)
    """Kept open, so that no number is given again and the content of what was replaced can be read."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Count the present content as on the disk."""
        for inode, names in self._look().items():
            self._names[inode] = names
        for inode, (_, entry) in self._held.items():
            if entry.kind == "file":
                self._contents[inode] = self._now(inode)

    def acknowledge(self, line: str) -> None:
        """From now on it must survive."""
        with self._lock:
            self.acknowledged.append(line)
            self._note()

    def synced(self, descriptor: int) -> None:
        """Record a sync of a file or folder."""
        with self._lock:
            now = self._look()
            self._note()
            inode = os.fstat(descriptor).st_ino
            if inode in now:
                self._names[inode] = now[inode]
            elif inode in self._held:
                self._contents[inode] = self._now(inode)
            self._note()

    def moved(self) -> None:
        """A name was made or changed."""
        with self._lock:
            self._look()
            self._note()

    def close(self) -> None:
        """Let go of the files."""
        for descriptor, _ in self._held.values():
            os.close(descriptor)

    def _look(self) -> dict[Inode, dict[str, Inode]]:
        """Names in each folder, as they are."""
        found: dict[Inode, dict[str, Inode]] = {}
        for where, folders, files in os.walk(self.folder):
            own = os.stat(where).st_ino
            found[own] = {name: self._hold(Path(where) / name) for name in (*folders, *files)}
        return found

    def _hold(self, path: Path) -> Inode:
        status = path.lstat()
        if status.st_ino not in self._held:
            self._held[status.st_ino] = _open(path, status)
        return status.st_ino

    def _now(self, inode: Inode) -> bytes:
        descriptor = self._held[inode][0]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def _note(self) -> None:
        now, root = self._look(), self.folder.stat().st_ino
        acknowledged = tuple(self.acknowledged)
        for names in (self._names, now):
            for content in (lambda inode: self._contents.get(inode, b""), self._now):
                state = State(acknowledged, tuple(self._tree(root, names, content, "")))
                self.states[state] = None

    def _tree(
        self,
        folder: Inode,
        names: dict[Inode, dict[str, Inode]],
        content: Callable[[Inode], bytes],
        prefix: str,
    ) -> Iterator[tuple[str, Entry]]:
        for name, inode in sorted(names.get(folder, {}).items()):
            _, entry = self._held[inode]
            if entry.kind == "file":
                entry = Entry("file", entry.mode, content(inode))
            yield prefix + name, entry
            if entry.kind == "folder":
                yield from self._tree(inode, names, content, f"{prefix}{name}/")


def _open(path: Path, status: os.stat_result) -> tuple[int, Entry]:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return os.open(path, os.O_PATH | os.O_NOFOLLOW), Entry("link", mode, os.fsencode(os.readlink(path)))
    return os.open(path, os.O_RDONLY), Entry("folder" if stat.S_ISDIR(status.st_mode) else "file", mode)


@contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    """Record what this process syncs and renames below ``folder``."""
    recorder = Recorder(folder)
    sync = os.fsync

    def fsync(file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        sync(descriptor)
        recorder.synced(descriptor)

    def then_look(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            result = function(*args, **more)
            recorder.moved()
            return result

        return called

    with mock.patch.object(os, "fsync", fsync):
        moves = {name: then_look(getattr(os, name)) for name in ("rename", "replace", "link")}
        with mock.patch.multiple(os, **moves):
            yield recorder
    recorder.close()
