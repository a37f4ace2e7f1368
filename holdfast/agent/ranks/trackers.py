"""Python's helper that removes the shared memory of processes that ended without doing so: each rank has its own.

By itself a rank would use the fork server's, which lives as long as the agent and removes nothing before. Its own ends,
and cleans up, when the rank and all that it forked have ended, in any way; so it must outlive them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from multiprocessing import resource_tracker, util
from typing import Any

_NAME = "multiprocessing.resource_tracker"
"""In the command line of a tracker."""
_OF_TORCH = b"torch_shm_manager"
"""The same of torch's helper for its sharing strategy ``file_system``."""


def tidies(command: bytes) -> bool:
    """Return whether a process with this command line removes shared memory once those that it serves have ended."""
    return _NAME.encode() in command


def tidies_late(command: bytes) -> bool:
    """Return whether a process with this command line does that as it ends, 2 s after those that it serves."""
    return _OF_TORCH in command


def leave_fork_servers() -> None:
    """Have this process start a tracker of its own when it first needs one, outside of its process group."""
    tracker: Any = resource_tracker._resource_tracker
    if (inherited := tracker._fd) is not None:
        with contextlib.suppress(OSError):
            os.close(inherited)
    tracker._fd = tracker._pid = None
    spawn = util.spawnv_passfds

    def spawn_apart(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if not (args and _NAME in str(args[-1])):
            return int(spawn(path, args, passfds))
        made = subprocess.Popen(args, executable=path, pass_fds=passfds, process_group=0)
        made.returncode = 0  # not ours to wait for
        return made.pid

    util.spawnv_passfds = spawn_apart
