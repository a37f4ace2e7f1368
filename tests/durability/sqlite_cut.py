"""Power loss under SQLite: which files it has synced, learnt from its own layer above the operating system.

A VFS of ours passes every file to the one that SQLite has, except that a sync is noted first: from then on the content
is on the disk. What is not noted is lost.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import ctypes.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_METHODS = 19
"""Words of ``sqlite3_io_methods``: a version and 18 functions; of a later version more, which are not called here."""
_SYNC = 5
_XOPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_XSYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("file_nbytes", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", _XOPEN),
        ("others", ctypes.c_void_p * 16),
    )


def library() -> ctypes.CDLL | None:
    """The SQLite that Python uses; None when it is built into Python, where calls cannot be intercepted."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libsqlite3.so" in line}
    assert _sqlite3.__name__
    return ctypes.CDLL(loaded.pop()) if loaded else None


class Disk:
    """Synced content, by path."""

    def __init__(self) -> None:
        self.synced: dict[str, bytes] = {}

    def lay_out(self, source: Path, target: Path) -> None:
        """Write to the new folder ``target`` what a power cut leaves of the databases in ``source``."""
        target.mkdir()
        for path, content in self.synced.items():
            if Path(path).parent == source and Path(path).exists():
                (target / Path(path).name).write_bytes(content)


@contextmanager
def recording(sqlite: ctypes.CDLL) -> Iterator[Disk]:
    """Note the syncs of every database that is opened in the block."""
    disk = Disk()
    sqlite.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    given = sqlite.sqlite3_vfs_find(None)
    ours = _Vfs()
    ctypes.memmove(ctypes.byref(ours), given, ctypes.sizeof(_Vfs))
    ours.name = b"holdfast-power-cut"
    passed_on, tables, paths = given.contents.open, [], {}

    def sync(file: int, flags: int) -> int:
        if path := paths.get(file):
            disk.synced[path] = Path(path).read_bytes()
        return 0

    noted = _XSYNC(sync)

    # The name as an address: the file keeps it for the names of its journals, and a copy of ours would be gone by then.
    def opened(_vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        status = int(passed_on(ctypes.addressof(ours), name, file, flags, out))
        methods = ctypes.c_void_p.from_address(file)
        if status == 0 and methods.value:
            table = (ctypes.c_void_p * _METHODS).from_buffer_copy(
                ctypes.string_at(methods.value, 8 * _METHODS)
            )
            table[_SYNC] = ctypes.cast(noted, ctypes.c_void_p).value
            tables.append(table)
            methods.value = ctypes.addressof(table)
            paths[file] = os.fsdecode(ctypes.string_at(name)) if name else ""
        return status

    ours.open = _XOPEN(opened)
    assert sqlite.sqlite3_vfs_register(ctypes.byref(ours), 1) == 0
    try:
        yield disk
    finally:
        sqlite.sqlite3_vfs_unregister(ctypes.byref(ours))
        sqlite.sqlite3_vfs_register(given, 1)
