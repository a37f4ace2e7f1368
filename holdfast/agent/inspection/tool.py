"""A tool of the machine (``smartctl``, ``mdadm``, ``ethtool``, ``dcgmi``): found, asked, and bounded in time."""

from __future__ import annotations

import asyncio
import os
import shutil

from holdfast.commands import run

_KEPT = 4 << 20
"""Bytes of output: one document of all devices."""
SYSTEM = "/usr/sbin:/sbin"
"""Folders of administrators' tools, which the PATH of a service may lack."""


class Tool:
    """One tool. Where it is not installed, nothing is tested."""

    def __init__(self, name: str, timeout_s: float, path: str | None = None) -> None:
        """Look for ``name`` in ``path``, or in the agent's PATH and the folders of administrators' tools."""
        self._name = name
        self._timeout_s = timeout_s
        self._path = path

    @property
    def installed(self) -> bool:
        """Whether the machine has it now."""
        return self._found() is not None

    def ask(self, *arguments: str, errors: bool = False, within_s: float | None = None) -> str:
        """Return the tool's output; empty when it is missing or does not end in time. For threads, it waits.

        Its exit status is not returned: these tools end with one when they found a fault.

        Args:
            *arguments: of the tool.
            errors: what it wrote to its error output comes first.
            within_s: less time than the tool usually has.
        """
        found = self._found()
        if found is None:
            return ""
        limit_s = self._timeout_s if within_s is None else min(within_s, self._timeout_s)
        ended = asyncio.run(run((found, *arguments), limit_s, kept=_KEPT))
        return f"{ended.err}\n{ended.out}" if errors else ended.out

    def _found(self) -> str | None:
        path = self._path
        if path is None:
            path = os.pathsep.join((os.environ.get("PATH", os.defpath), SYSTEM))
        return shutil.which(self._name, path=path)
