"""Commands of vendors and sites: each bounded in time, with all that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from holdfast.models.base import Frozen

NOT_FOUND = 127
"""Exit status of shells, and of ``ssh``, for a command that is not there."""
KEPT = 64 * 1024
"""Bytes kept of the end of each output."""


class Ended(Frozen):
    """How a command ended."""

    status: int | None
    """None: it was ended after its time."""
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        """Whether the command succeeded (exit status 0)."""
        return self.status == 0

    @property
    def missing(self) -> bool:
        """Whether the command is not installed."""
        return self.status == NOT_FOUND

    @property
    def message(self) -> str:
        """Its exit status and the end of its output, in one line."""
        words = " ".join((self.err or self.out).split())[-300:]
        how = "not finished in time" if self.status is None else f"exit status {self.status}"
        return f"{how}: {words}" if words else how


async def run(command: Sequence[str], timeout_s: float, kept: int = KEPT) -> Ended:
    """Run a command with all that it starts in a group of its own; after its time none of it is left.

    Args:
        command: the program and its arguments.
        timeout_s: it is killed then; so it is when who waits is cancelled.
        kept: bytes of the end of each output.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Ended(status=NOT_FOUND, err=f"{command[0]}: not found")
    except OSError as error:
        return Ended(status=126, err=f"{command[0]}: {error}")
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except (TimeoutError, asyncio.CancelledError) as why:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(why, asyncio.CancelledError):
            raise
        return Ended(status=None)
    return Ended(
        status=process.returncode,
        out=out[-kept:].decode(errors="replace"),
        err=err[-kept:].decode(errors="replace"),
    )
