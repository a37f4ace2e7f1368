"""One replica on this machine: its process, started again by its role's rule until it is to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent import wire
from holdfast.agent.ranks.forkserver import ForkServer
from holdfast.agent.ranks.processes import Watched, stop
from holdfast.agent.ranks.rank_main import RankOrder, run_rank
from holdfast.agent.ranks.remains import Remains
from holdfast.agent.ranks.scratch import Scratch
from holdfast.agent.roles.files import RoleFiles
from holdfast.agent.roles.silence import Silence
from holdfast.models.roles import Replica, ReplicaPhase, ReplicaState
from holdfast.policies.roles import restart

_log = logging.getLogger(__name__)
NICER = 5
"""Replicas give way to the ranks beside them, also while they start."""
STARTS_S = 0.5
"""Longest time for which a start keeps its turn; it gives it up when it announces its address, or ends."""
LOOK_S = 0.05
"""Between looks whether it announced."""
_REMEMBERED = 1000
"""Restarts that a budget may count."""


@dataclass(frozen=True)
class Means:
    """Surroundings of replicas: those of ranks, so that they are cleaned up as ranks are."""

    machine: str
    folder: Path
    """The machine's folder."""
    controls: Path
    """Folder of the marks by which processes are recognised (:mod:`holdfast.agent.ranks.remains`)."""
    forks: ForkServer
    remains: Remains
    scratch: Scratch
    files: RoleFiles
    changed: Callable[[], None]
    """Called when a replica's state changed: it should not wait for the next heartbeat."""
    starts: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(max(2, len(os.sched_getaffinity(0))))
    )
    """Turns to start, one per core: hundreds of starts at once leave the ranks and the agent no processor."""


class Supervised:
    """A replica from its first start until :meth:`end`."""

    def __init__(self, job: str, order: Replica, code: Path, means: Means) -> None:
        self.job = job
        self.order = order
        self.phase = ReplicaPhase.RUNNING
        self.failures = 0
        self.why = ""
        self.code = code
        """Checkout that its next run is of."""
        self.code_version = ""
        self._means = means
        self._process: Watched | None = None
        self._since = time.time()
        self._restarts: deque[float] = deque(maxlen=_REMEMBERED)
        self._restarted = 0
        self._to_end = asyncio.Event()
        self._life = asyncio.create_task(self._live(), name=self.name)

    @property
    def name(self) -> str:
        """For files and marks: no run of ranks has such a name."""
        order = self.order
        return f"{self.job}+{order.role}-{order.index}-g{order.generation}"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and not self._process.gone.done()

    @property
    def ends(self) -> bool:
        """Whether it is to end: it starts no more, also where something of it did not die yet."""
        return self._to_end.is_set()

    @property
    def address(self) -> str:
        """Where it can be reached."""
        order = self.order
        if not self.running:
            return ""
        return self._means.files.address(self.job, order.role, order.index, order.generation)

    def state(self) -> ReplicaState:
        """Return its state, for a heartbeat."""
        return ReplicaState(
            job=self.job,
            role=self.order.role,
            index=self.order.index,
            generation=self.order.generation,
            phase=self.phase,
            pid=self._process.pid if self._process is not None and self.running else 0,
            address=self.address,
            restarts=self._restarted,
            failures=self.failures,
            since=self._since,
            why=self.why,
        )

    async def end(self) -> None:
        """End it, with all that it started; nothing of it is left then.

        Raises:
            UnavailableError: something of it does not die.
        """
        self._to_end.set()
        if self._process is not None:
            await stop([self._process], self.order.stop_grace_s)
        await self._life
        await self._clean()

    async def _live(self) -> None:
        while not self._to_end.is_set():
            try:
                await self._clean()  # nothing is started beside what does not die
                ended = await self._run()
                await self._clean()
            except Exception as error:  # whatever it is: it counts as a failed run, and another one follows
                _log.warning("%s: %s", self.name, error or type(error).__name__)
                ended = restart.ReplicaEnd(0.0, 1)
                self.why = str(error) or type(error).__name__
            if self._to_end.is_set() or not await self._again(ended):
                return

    async def _again(self, ended: restart.ReplicaEnd) -> bool:
        """Decide what follows, and wait for it; return whether it is to start again."""
        rule, now = self.order.restart, time.monotonic()
        after = restart.after(ended, rule, self.failures, self._restarts, now)
        self.failures = after.failures
        if after.pause_s is None:
            self.phase = ReplicaPhase.FAILED if after.failed else ReplicaPhase.DONE
            self.why = f"{self.why}; {after.failed}" if after.failed else self.why
            self._means.changed()
            return False
        self.phase = ReplicaPhase.PAUSING
        self._means.changed()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._to_end.wait(), after.pause_s)
            return False
        self._restarts.append(time.monotonic())
        self._restarted += 1
        return True

    async def _run(self) -> restart.ReplicaEnd:
        """Run its process once."""
        order, means = self.order, self._means
        means.files.withdraw(self.job, order.role, order.index, order.generation)
        if not await self._turn():
            return restart.ReplicaEnd(0.0, 0)
        try:
            group = means.remains.open(self.name)
            forked = await means.forks.run_soon(run_rank, (self._order_of_process(group),))
            began = time.monotonic()
            self._since = time.time()
            self._process = process = Watched(forked, order.index)
            self.phase = ReplicaPhase.RUNNING
            means.changed()
            if self._to_end.is_set():
                await stop([process])
            await self._begun(process)
        finally:
            means.starts.release()
        hung = await self._until_gone(process)
        status = await process.gone
        announced = bool(means.files.address(self.job, order.role, order.index, order.generation))
        self.why = hung or (f"signal {-status}" if status < 0 else f"exit status {status}")
        return restart.ReplicaEnd(time.monotonic() - began, status, announced)

    async def _turn(self) -> bool:
        """Wait for a turn to start; return False, without one, when it is to end instead."""
        starts = self._means.starts
        if not starts.locked():
            return await starts.acquire()
        self.phase = ReplicaPhase.PAUSING
        turn, ending = asyncio.create_task(starts.acquire()), asyncio.create_task(self._to_end.wait())
        try:
            await asyncio.wait((turn, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            if not turn.done():
                turn.cancel()
        return turn.done()

    async def _begun(self, process: Watched) -> None:
        """Wait until the start is over, as far as that can be seen."""
        order, over = self.order, time.monotonic() + STARTS_S
        while not process.gone.done() and time.monotonic() < over:
            if self._means.files.address(self.job, order.role, order.index, order.generation):
                return
            await asyncio.wait((process.gone,), timeout=LOOK_S)

    async def _until_gone(self, process: Watched) -> str:
        """Wait for the end of a process; end one that hangs, and return why it was taken to."""
        order, silent = self.order, Silence(self.order.restart.silent_s)
        while order.restart.silent_s and not process.gone.done():
            await asyncio.wait((process.gone,), timeout=silent.look_s)
            if silent.over(
                self._means.files.alive_at(self.job, order.role, order.index, order.generation),
                time.monotonic(),
            ):
                _log.warning("%s: %s: it is started again", self.name, silent.why)
                await stop([process])
                return silent.why
        return ""

    async def _clean(self) -> None:
        """End what the process left behind, and withdraw its address."""
        order, means = self.order, self._means
        means.files.withdraw(self.job, order.role, order.index, order.generation)
        await means.remains.end(self.name, alone=lambda: False)
        await asyncio.to_thread(means.scratch.remove, self.name)

    def _order_of_process(self, group: str) -> RankOrder:
        order, means = self.order, self._means
        logs = means.folder / "logs" / self.job
        logs.mkdir(parents=True, exist_ok=True)
        return RankOrder(
            rank=order.index,
            epoch=order.generation,
            script=order.script,
            args=order.args,
            cwd=str(self.code),
            log=str(logs / f"{order.role}-{order.index}-g{order.generation}.log"),
            socket="",
            env=dict(self._environment()),
            group=group,
            nicer=NICER,
        )

    def _environment(self) -> Mapping[str, str]:
        order, means = self.order, self._means
        own = {"OMP_NUM_THREADS": str(order.cpus)}
        if order.gpus is not None:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, order.gpus))
        given = {**own, **order.env}
        return {
            **given,
            **means.scratch.open(self.name, given),
            wire.ENV_JOB: self.job,
            wire.ENV_MACHINE: means.machine,
            wire.ENV_CONTROL: str(means.controls / f"{self.name}-r0"),
            **means.files.environment(self.job, order.role, order.index, order.generation),
        }
