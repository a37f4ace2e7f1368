"""Commands of vendors and sites on a machine that is out of service."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from holdfast.commands import KEPT, Ended, run
from holdfast.errors import SettingsError

NODE = "{node}"
"""Stands in a site's command for the name of the machine's host."""


async def on_machine(
    shell: str, machine: str, node: str, command: Sequence[str], timeout_s: float, *, kept: int = KEPT
) -> Ended:
    """Run ``command`` on ``machine`` through the site's ``shell``; without one, on this host.

    Raises:
        SettingsError: the shell cannot be understood.
    """
    prefix = words("repair.shell", shell, machine, node)
    # ssh hands its arguments to a shell of the other side: as one word each.
    return await run([*prefix, *(map(shlex.quote, command) if prefix else command)], timeout_s, kept)


def words(name: str, command: str, machine: str, node: str) -> list[str]:
    """Split a command of the policy file into words, for ``machine`` on the host ``node``.

    Raises:
        SettingsError: it cannot be understood.
    """
    try:
        return [word.replace("{machine}", machine).replace(NODE, node) for word in shlex.split(command)]
    except ValueError as error:
        raise SettingsError(f"{name} = {command!r}: {error}, expected a command line") from None
