"""The local driver: machines are process trees of this host, each led by its agent, in its own session."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from holdfast import durable, paths, private
from holdfast.drivers import processes
from holdfast.drivers.agent_starter import ROOM, AgentStarter, start_alone, starting_together
from holdfast.drivers.base import Supplied, require_unit
from holdfast.drivers.roster import RosterFile, locked
from holdfast.errors import RefusedError, SettingsError, UnavailableError, UnknownError
from holdfast.models.base import Frozen
from holdfast.models.incarnation import ENV_UNIT
from holdfast.models.machine import Scope
from holdfast.paths import ENV_MACHINE_DIR, machine_dir, shm_dir

__all__ = ["EvictedMarker", "LocalDriver", "machine_dir", "shm_dir"]

# A playbook's own process must not shine through into the machines that it starts.
_NOT_INHERITED = "PREFECT_"
_UNIT = "unit"
_AGENT = (sys.executable, "-P", "-m", "holdfast.agent")


class EvictedMarker(Frozen):
    """Content of ``evicted.json``, the marker in the folder of an evicted machine."""

    scope: Scope
    reason: str
    at: float
    """Seconds since the Unix epoch."""


class LocalDriver:
    """Machines of one project (``home``) on this host.

    ``agent`` is the command that starts a machine's agent, ``environment`` its settings, which override ours: a
    relative path of ours means another file in an agent's folder.
    """

    name = "local"

    def __init__(
        self,
        home: Path,
        *,
        host: str = "127.0.0.1",
        agent: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.home = home.resolve()
        self._chosen = environment
        self._host = host
        self._agent = tuple(agent) or _AGENT
        self._roster = RosterFile(self.home)

    def machines(self) -> list[Supplied]:
        """Return all machines that were provisioned and not retired."""
        return [self._supplied(name) for name in self._roster.read().names]

    def provision(self, n: int, group: str = "") -> list[str]:
        """Start the agents of ``n`` new machines; names are never used twice.

        Raises:
            SettingsError: ``n`` is negative, or a ``group`` is asked for: this host has one kind of machine.
            UnavailableError: an agent could not be started; then none of the ``n`` is left.
        """
        if n < 0:
            raise SettingsError(f"provision: n = {n}, expected 0 or more.")
        if group:
            raise SettingsError(
                f"provision: group = {group!r}, but the local driver has one kind of machine. "
                "Take the group out of spare_pool.groups in the policy file."
            )
        with self._starter(n) as starter:
            names = self._roster.add(n) if n else []
            try:
                for name in names:
                    self._boot(name, starter)
            except UnavailableError:
                for name in names:
                    self.retire(name)
                raise
        return names

    def withdraw(self) -> None:
        """Do nothing: no request waits here."""

    def evict(self, machine: str, scope: Scope, reason: str, incarnation: str = "") -> None:
        """Kill everything that runs on ``machine``, wipe its memory, mark its folder; the widest scope counts.

        Raises:
            UnknownError: there was never such a machine.
            ReplacedUnitError: it was restarted since ``incarnation``.
            UnavailableError: a process of it survived SIGKILL.
        """
        in_use = self._is_in_use(machine)
        with self._lock(machine):
            require_unit(machine, incarnation, self._unit(machine))
            processes.kill_all(self._folder(machine))
            self._wipe_memory(machine)
            before = self.evicted(machine)
            wider = before is not None and (before.scope, scope) == (Scope.JOB, Scope.CLUSTER)
            if in_use and (before is None or wider):
                at = before.at if before is not None else time.time()
                marker = EvictedMarker(scope=scope, reason=reason, at=at)
                durable.make_folder(self._folder(machine))
                durable.write(self._folder(machine) / "evicted.json", marker.model_dump_json(), "machine")

    def release(self, machine: str, incarnation: str = "") -> None:
        """Restart ``machine`` with an empty disk and memory; one that is up already is left alone.

        Raises:
            UnknownError: there is no such machine, or it was retired.
            ReplacedUnitError: it was restarted since ``incarnation``, and was evicted again or died.
        """
        if not self._is_in_use(machine):
            raise UnknownError(f"machine {machine!r} was retired: provision a new one.")
        with self._lock(machine):
            in_service = self.evicted(machine) is None
            if in_service and self._supplied(machine).alive:
                return
            # A release that was killed between a unit and its agent is finished, whatever unit that is.
            if not in_service or (self._folder(machine) / "agent.json").exists():
                require_unit(machine, incarnation, self._unit(machine))
            self._clear(machine)
            self._boot(machine)

    def reboot(self, machine: str, reason: str, incarnation: str, wait_s: float) -> str:
        """Do all that a restart is here: kill what is left of an evicted machine, and wipe its memory.

        Raises:
            UnknownError: there was never such a machine.
            ReplacedUnitError: it was restarted since ``incarnation``.
            RefusedError: it is in service.
            UnavailableError: a process of it survived SIGKILL.
        """
        if not self._is_in_use(machine):
            raise UnknownError(f"machine {machine!r} was retired: provision a new one.")
        with self._lock(machine):
            require_unit(machine, incarnation, self._unit(machine))
            if self.evicted(machine) is None:
                raise RefusedError(f"machine {machine} is in service: it is not restarted.")
            processes.kill_all(self._folder(machine))
            self._wipe_memory(machine)
        return "nothing of it runs, its memory is empty"

    def retire(self, machine: str, incarnation: str = "") -> None:
        """Kill ``machine`` and remove what is left of it; its name is not used again.

        Raises:
            UnknownError: there was never such a machine.
            ReplacedUnitError: it was restarted since ``incarnation``.
        """
        self._is_in_use(machine)
        with self._lock(machine):
            require_unit(machine, incarnation, self._unit(machine))
            self._clear(machine)
            self._roster.remove(machine)

    def evicted(self, machine: str) -> EvictedMarker | None:
        """Return why and when ``machine`` was evicted; None when it is in service."""
        try:
            return EvictedMarker.model_validate_json((self._folder(machine) / "evicted.json").read_bytes())
        except OSError:
            return None

    @contextlib.contextmanager
    def _starter(self, n: int) -> Iterator[AgentStarter]:
        """Yield what starts ``n`` agents: together, if they are ours and more than one."""
        if n < 2 or self._agent != _AGENT:
            yield start_alone
            return
        with starting_together(self.home, self._environment(Path(ROOM))) as starter:
            yield starter

    def _boot(self, name: str, start: AgentStarter = start_alone) -> None:
        folder = self._folder(name)
        private.folder(folder)
        for memory in (paths.shm_root(self.home), shm_dir(self.home, name)):
            private.folder(memory)
        durable.sync(folder.parent)
        durable.write(folder / _UNIT, uuid.uuid4().hex[:8], "machine")
        command = [*self._agent, "--machine", name, "--home", str(self.home), "--host", self._host]
        try:
            start(command, folder, {**self._environment(folder), ENV_UNIT: self._unit(name)})
        except (OSError, subprocess.SubprocessError) as error:
            raise UnavailableError(f"machine {name}: its agent did not start: {error}") from None

    def _environment(self, folder: Path) -> Mapping[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
        return {**kept, **self._chosen, ENV_MACHINE_DIR: str(folder), "HOLDFAST_HOME": str(self.home)}

    def _unit(self, machine: str) -> str:
        """Return the unit written at every start; empty where a former release started the machine."""
        try:
            return (self._folder(machine) / _UNIT).read_text()
        except FileNotFoundError:
            return ""

    def _supplied(self, name: str) -> Supplied:
        folder = self._folder(name)
        if (marker := self.evicted(name)) is not None:
            return Supplied(name=name, alive=False, detail=f"evicted ({marker.scope}): {marker.reason}")
        if (agent := processes.find_agent(folder)) is not None:
            return Supplied(name=name, alive=True, detail=f"agent {agent.pid}")
        if (folder / "agent.json").exists():
            return Supplied(name=name, alive=False, detail="its agent is dead")
        if processes.find_all(folder):
            return Supplied(name=name, alive=True, detail="starting")
        return Supplied(name=name, alive=False, detail="no process and no agent.json")

    def _folder(self, name: str) -> Path:
        return machine_dir(self.home, name)

    def _lock(self, machine: str) -> AbstractContextManager[None]:
        return locked(self.home / "machines" / f"{machine}.lock")

    def _is_in_use(self, machine: str) -> bool:
        roster = self._roster.read()
        if machine in roster.names:
            return True
        if roster.ever_had(machine):
            return False
        known = ", ".join(roster.names) or "none"
        raise UnknownError(f"unknown machine {machine!r}. Machines: {known}.")

    def _clear(self, machine: str) -> None:
        processes.kill_all(self._folder(machine))
        self._wipe_memory(machine)
        shutil.rmtree(self._folder(machine), ignore_errors=True)

    def _wipe_memory(self, machine: str) -> None:
        shutil.rmtree(shm_dir(self.home, machine), ignore_errors=True)
        try:
            paths.shm_root(self.home).rmdir()  # the last one out
        except OSError:
            return
