"""A rank is one process: a second one with its environment, such as an evaluation that it starts, is no part of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from weakref import WeakMethod, WeakSet

from holdfast import private
from holdfast.agent import wire
from holdfast.errors import SettingsError

_FLOCK = struct.Struct("hhqqi4x")


class Claim:
    """Hold a rank's control page for this process, for as long as it lives.

    The lock is the process's: children that it forks do not have it, its other Sessions do. It ends with the process,
    or when that executes an interpreter again.
    """

    def __init__(self, control: Path, rank: int) -> None:
        """Take it.

        Raises:
            SettingsError: another process has it.
        """
        self._file = os.fdopen(private.opened(control, os.O_RDWR), "r+b")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                return  # a file system without locks
            advice = f"Start it without {wire.ENV_SOCKET} in its environment, or make one Session per rank."
            raise taken(rank, self._holder(), advice) from None

    def _holder(self) -> int:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        with contextlib.suppress(OSError):
            return int(_FLOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, asked))[4])
        return 0


def taken(rank: int, holder: int, advice: str) -> SettingsError:
    """Return the error of a process that is not the rank."""
    return SettingsError(
        f"rank {rank} has a Session already, in {_name(holder)}: that process reports and saves the rank, and the "
        f"Session of this one (process {os.getpid()}) does nothing. {advice}"
    )


_notices: WeakSet[ForkNotice] = WeakSet()


class ForkNotice:
    """Reports to one Session that it is in a child of the rank's process, which is not the rank."""

    def __init__(self, rank: int, report: Callable[[SettingsError], None]) -> None:
        self._rank, self._pid = rank, os.getpid()
        self._report = WeakMethod(report)
        _notices.add(self)

    def give(self) -> None:
        """Report it, in the child."""
        if (report := self._report()) is not None:
            advice = "Make the model's copy in it, and leave steps and saves to the rank."
            report(taken(self._rank, self._pid, advice))


def _forked() -> None:
    for each in list(_notices):
        each.give()


os.register_at_fork(after_in_child=_forked)


def _name(pid: int) -> str:
    return f"process {pid}" if pid > 0 else "another process"
