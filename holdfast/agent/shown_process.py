"""Environment and command of this process in the list of processes, written over those that it began with.

``/proc/PID/environ`` and ``/proc/PID/cmdline`` show the memory that held both when the program was executed, whatever
the process does to its own copy later. A fork that becomes another process writes there; the driver that started the
program left room.
"""

from __future__ import annotations

import ctypes
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

_ARG_START, _ARG_END, _ENV_START = 45, 46, 47
"""Places in /proc/PID/stat, counted from the process state."""


def environment(variables: Mapping[str, str]) -> None:
    """Set variables of this process and its forks, and have ``/proc/PID/environ`` show them.

    Raises:
        ValueError: a value is longer than the one that the program was executed with.
    """
    begin = _places()[_ENV_START]
    for name, value in variables.items():
        content = b"\0" + Path("/proc/self/environ").read_bytes()
        at = content.index(b"\0" + (start := os.fsencode(f"{name}=")))
        room = content.index(b"\0", at + 1) - at - 1
        entry = start + os.fsencode(value)
        if len(entry) > room:
            raise ValueError(
                f"{name}={value}: longer than the {room} bytes that the starter was given for it."
            )
        ctypes.memmove(begin + at, entry.ljust(room, b"\0"), room)
        os.environ[name] = value


def command(words: Sequence[str]) -> None:
    """Have ``/proc/PID/cmdline`` show this command, as far as there is room.

    When the last byte of the arguments' memory is no NUL, the kernel takes them for one text, up to the first NUL: this
    is how ``setproctitle`` does it.
    """
    places = _places()
    begin, room = places[_ARG_START], places[_ARG_END] - places[_ARG_START]
    text = os.fsencode(shlex.join(words))[: room - 2]
    ctypes.memmove(begin, (text + b"\0").ljust(room, b" "), room)


def _places() -> list[int]:
    """Return the fields of /proc/self/stat from the process state on; those that are no numbers as 0."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return [int(field) if field.lstrip("-").isdigit() else 0 for field in fields]
