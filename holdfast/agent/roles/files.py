"""Files between the agent and the processes of a job: who can be reached, and who announced an address."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast import roles
from holdfast.listen import authority
from holdfast.models.roles import Member


class RoleFiles:
    """The files of one machine, a folder per job. :mod:`holdfast.roles` is their other side."""

    def __init__(self, folder: Path, host: str) -> None:
        """``folder`` is the machine's; the others reach it at ``host``."""
        self._root = folder / "roles"
        self._host = host

    def clear(self) -> None:
        """Remove all: the processes of an earlier agent are gone."""
        shutil.rmtree(self._root, ignore_errors=True)

    def environment(self, job: str, role: str, index: int, generation: int) -> dict[str, str]:
        """Return the variables by which a process knows its role."""
        return {
            roles.ENV_ROLE: role,
            roles.ENV_INDEX: str(index),
            roles.ENV_GENERATION: str(generation),
            roles.ENV_FOLDER: str(self._root / job),
            roles.ENV_HOST: self._host,
        }

    def show(self, job: str, members: Sequence[Member]) -> None:
        """Let the processes of a job see who can be reached."""
        shown = {"members": [member.model_dump() for member in members]}
        roles.written(self._root / job / roles.MEMBERS, shown)

    def address(self, job: str, role: str, index: int, generation: int) -> str:
        """Return the address that a process announced; empty: none."""
        note = roles.read(self._note(job, role, index, generation, roles.ADDRESS))
        port = note.get("port") if isinstance(note, dict) else None
        return authority(self._host, port) if isinstance(port, int) else ""

    def alive_at(self, job: str, role: str, index: int, generation: int) -> int:
        """Return when a process last reported progress, in nanoseconds of the file system; 0: never."""
        try:
            return self._note(job, role, index, generation, roles.ALIVE).stat().st_mtime_ns
        except OSError:
            return 0

    def withdraw(self, job: str, role: str, index: int, generation: int) -> None:
        """Remove what a process that ended has announced."""
        for kind in (roles.ADDRESS, roles.ALIVE):
            with contextlib.suppress(OSError):
                self._note(job, role, index, generation, kind).unlink()

    def _note(self, job: str, role: str, index: int, generation: int, kind: str) -> Path:
        return roles.note(self._root / job, role, index, generation, kind)

    def forget(self, job: str) -> None:
        """Remove the files of a job."""
        shutil.rmtree(self._root / job, ignore_errors=True)
