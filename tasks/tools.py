"""Commands of vendors and sites on a machine that is out of service, each bounded in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Sequence

from holdfast.errors import SettingsError
from holdfast.models.base import Frozen

NOT_FOUND = 127
"""Exit status of shells, and of ``ssh``, for a command that is not there."""
_KEPT = 64 * 1024


class Ended(Frozen):
    """How a command ended."""

    status: int | None
    """None: it was ended after its time."""
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        """It said that it did what was asked."""
        return self.status == 0

    @property
    def missing(self) -> bool:
        """It is not installed."""
        return self.status == NOT_FOUND

    @property
    def said(self) -> str:
        """Its exit status and the last words, in one line."""
        words = " ".join((self.err or self.out).split())[-300:]
        how = "not finished in time" if self.status is None else f"exit status {self.status}"
        return f"{how}: {words}" if words else how


async def on_machine(shell: str, machine: str, command: Sequence[str], timeout_s: float) -> Ended:
    """Run ``command`` on ``machine`` through the site's ``shell``; without one, on this host.

    Raises:
        SettingsError: the shell cannot be understood.
    """
    prefix = words("repair.shell", shell, machine)
    # What ssh is given it hands to a shell of the other side: as one word each.
    return await run([*prefix, *(map(shlex.quote, command) if prefix else command)], timeout_s)


def words(name: str, command: str, machine: str) -> list[str]:
    """A command of the policy file in words, for ``machine``.

    Raises:
        SettingsError: it cannot be understood.
    """
    try:
        return [word.replace("{machine}", machine) for word in shlex.split(command)]
    except ValueError as error:
        raise SettingsError(f"{name} = {command!r}: {error}, expected a command line") from None


async def run(command: Sequence[str], timeout_s: float) -> Ended:
    """Run a command with all that it starts in a group of its own; after its time none of it is left."""
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
        out=out[-_KEPT:].decode(errors="replace"),
        err=err[-_KEPT:].decode(errors="replace"),
    )
