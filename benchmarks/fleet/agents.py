"""The real agent, with the scripted parts of :mod:`benchmarks.fleet` in the places of its own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.fleet.memory import Held, ScriptedMemory
from benchmarks.fleet.ranks import Script, ScriptedForks, ScriptedRank
from holdfast.agent import daemon
from holdfast.agent.checkpoints import transfer_main
from holdfast.agent.quiet_http import QuietHttp
from holdfast.agent.ranks import jobs, run
from holdfast.agent.ranks.run import Restored
from holdfast.errors import UnavailableError
from holdfast.models import agent as messages
from holdfast.models.alert import Alert, Finding
from holdfast.models.checkpoint import RestoreOrder, Tier
from holdfast.paths import shm_dir
from holdfast.plugins import policy as plugin_policy
from holdfast.secret import Keys
from holdfast.settings import Settings
from holdfast.storage import objects

_log = logging.getLogger(__name__)
_DEEP = 50
"""Frames of a rank's main thread."""
_VITALS = messages.Vitals(gpu_busy=0.97, traffic_bytes_s=2e10)
_http: contextvars.ContextVar[list[_Http]] = contextvars.ContextVar("http")


class _Http(QuietHttp):
    """Known to its machine."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        _http.get().append(self)


class _Carrier:
    """Checkouts come from the real store, through threads of this process; uploads are not made."""

    store: objects.ObjectStore | None = None

    def __init__(self, _forks: object, settings: Settings) -> None:
        if _Carrier.store is None:
            _Carrier.store = objects.from_settings(settings)

    async def start(self) -> None:
        """No process."""

    async def call(self, operation: str, timeout_s: float, **arguments: Any) -> Any:
        """Run one of :mod:`holdfast.agent.checkpoints.transfer_main`'s operations."""
        if operation != "checkout" or self.store is None:
            raise UnavailableError(f"{operation}: not scripted")
        work = functools.partial(transfer_main.checkout, self.store, **arguments)
        return await asyncio.wait_for(asyncio.to_thread(work), timeout_s)

    def close(self) -> None:
        """Nothing runs."""


class _Eye:
    """A detector that sees nothing: those that look at the host would all look at the same one."""

    name, interval_s, blocking = "scripted", 3600.0, False

    def poll(self) -> list[Alert]:
        """Nothing."""
        return []

    def inspect(self) -> list[Finding]:
        """Nothing."""
        return []


class _Staging(daemon.Staging):
    """Shards that are reported, not stored, need not be read through in threads."""

    async def _here(self, job: str, rank: int, order: RestoreOrder) -> Restored:
        memory = self._memory
        if isinstance(memory, ScriptedMemory) and memory.claims(job, rank, order.step, order.epoch):
            path, header = memory.require_whole(job, rank, order.step, order.epoch)
            return Restored(header.step, Tier.MEMORY.value, path=str(path))
        return await super()._here(job, rank, order)


class FleetAgent(daemon.Agent):
    """One of many in this process."""

    others: Mapping[str, FleetAgent] = {}
    """All machines of the fleet that live."""

    async def stacks(self, job: str, epoch: int) -> list[messages.StackDump]:
        """As of ranks that wait in a collective: no process is there to be read."""
        known = self.jobs.run(job, epoch)
        return [
            messages.StackDump(
                machine=self.machine, rank=rank, pid=each.pid, process_state="S", thread=thread, frames=frames
            )
            for rank, each in known.processes.items()
            if not each.gone.done()
            for thread, frames in _stacks().items()
        ]

    async def persist(self, command: messages.Persist) -> None:
        """There are no bytes to upload."""
        self._check(command.incarnation)

    async def start(self, command: messages.Start) -> list[messages.RankState]:
        """Start this machine's ranks; each step of theirs is held here and by the peer."""
        memory = self.memory
        assert isinstance(memory, ScriptedMemory)

        def saved(step: int) -> None:
            ranks, world = command.ranks, command.world_size
            held = Held(command.job, ranks, command.epoch, step, world, step)
            memory.saved(Tier.MEMORY, held)
            peer = self.others.get(command.peer_machine)
            if peer is not None and isinstance(peer.memory, ScriptedMemory):
                peer.memory.saved(Tier.PEER, held)

        Script.saved[str(self.memory.root / "sock")] = saved
        return await super().start(command)


class Machine:
    """One agent's life."""

    def __init__(self, name: str, home: Path, settings: Settings, secret: Keys) -> None:
        self.name = name
        shm_dir(home, name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.agent = FleetAgent(name, home, settings, secret, "127.0.0.1")
        self._servers: list[_Http] = []
        self._killed = False
        self._life = asyncio.create_task(self._live())

    @property
    def alive(self) -> bool:
        """Whether its agent runs."""
        return not self._killed and not self._life.done()

    def kill(self) -> None:
        """It is gone from one moment to the next: connections are reset, no goodbye, no listener."""
        self._killed = True
        for each in self.agent.jobs.runs.values():
            Script.tear(each.start.job, each.start.epoch)
        for http in self._servers:
            for server in getattr(http, "servers", []):
                server.close()
            for connection in list(http.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
        self.agent._socket.close()
        self._life.cancel()

    async def _live(self) -> None:
        _http.set(self._servers)
        try:
            await self.agent.run()
        except Exception:
            _log.exception("machine %s ended", self.name)


def put_in_place(settings: Settings) -> None:
    """From now on agents of this process are made of scripted parts."""
    policy = plugin_policy.site_policy(settings.policy_file)
    _replace(daemon, "site_policy", lambda *_, **__: policy)
    _replace(daemon, "detectors", lambda *_: ((_Eye(),), lambda: _VITALS))
    _replace(daemon, "ForkServer", ScriptedForks)
    _replace(daemon, "TransferProcess", _Carrier)
    _replace(daemon, "Memory", ScriptedMemory)
    _replace(daemon, "Staging", _Staging)
    _replace(daemon, "QuietHttp", _Http)
    for module in (run, jobs):
        _replace(module, "Watched", ScriptedRank)


def _replace(module: ModuleType, name: str, part: object) -> None:
    if not hasattr(module, name):  # it was renamed there: the real part would run unseen
        raise AttributeError(f"{module.__name__} has no {name}")
    setattr(module, name, part)


@functools.cache
def _stacks() -> dict[str, tuple[messages.Frame, ...]]:
    waits = messages.Frame(function="all_reduce", file="torch/distributed/distributed_c10d.py", line=2801)
    deep = [
        messages.Frame(function=f"layer_{at}", file=f"model/part_{at % 7}.py", line=at) for at in range(_DEEP)
    ]
    loader = [
        messages.Frame(function="wait", file="threading.py", line=355),
        messages.Frame(function="_pin_memory_loop", file="torch/utils/data/_utils/pin_memory.py", line=60),
    ]
    return {"MainThread": (waits, *deep), "pin_memory": tuple(loader)}
