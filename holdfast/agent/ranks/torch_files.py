"""Tensors in shared memory that killed processes left: files named ``torch_PID_...``, removed by the pids of an epoch.

Under torch's sharing strategy ``file_system`` a tensor that is shared has a name in ``/dev/shm`` as long as it lives;
the process that made it is named there. Torch has a helper that removes the files of dead processes, but it ends with
the epoch, like all else that ranks started. Other jobs' and other users' tensors lie in the same folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from holdfast.agent.ranks import proc
from holdfast.paths import SHM

_NAME = re.compile(r"torch_(\d+)_")


def remove(pids: Collection[int], since: float, folder: Path = SHM) -> list[str]:
    """Remove what the processes ``pids`` made in ``folder`` after ``since``; return the names.

    Left alone are files of other users, older ones (another process had the pid before), and those of a pid that is in
    use (another process has it by now).
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    removed = []
    for name in names:
        named = _NAME.match(name)
        if named is None or (pid := int(named[1])) not in pids or _lives(pid):
            continue
        path = folder / name
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_ctime >= since:
                path.unlink()
                removed.append(name)
    return removed


def _lives(pid: int) -> bool:
    known = proc.look(pid)
    return known is not None and not known.holds_nothing
