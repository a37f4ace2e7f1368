"""A real mount whose server never answers: a FUSE file system without a process behind it, as an NFS server away."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[FileIO]:
    """Make ``folder``, of which no call returns any more; the server's end of it: when it is closed, they fail.

    Skips the test where the kernel forbids it.
    """
    folder.mkdir()
    try:
        server = FileIO("/dev/fuse", "r+")
    except OSError as error:
        pytest.skip(f"FUSE takes root and its device: {error}")
    options = f"fd={server.fileno()},rootmode=40000,user_id=0,group_id=0".encode()
    if _libc.mount(b"silent", str(folder).encode(), b"fuse", 0, options):
        server.close()
        pytest.skip(f"the kernel forbids it: {os.strerror(ctypes.get_errno())}")
    try:
        yield server
    finally:
        server.close()  # the kernel ends all that waits for it
        subprocess.run(["umount", "-l", str(folder)], check=True)
