"""Ranks that are a timer: what agents start, watch and kill in place of processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.agent import wire
from holdfast.agent.ranks import rendezvous
from holdfast.agent.ranks.rank_main import RankOrder, run_rank

STEP_S = 5.0
"""One training step, as of a large model."""
FIRST_STEP_S = 1.0
"""From a rank's start to its first step: what ranks need, scripted."""
# Beyond the largest pid that Linux gives: nothing that is done to one of these hits a process.
_pids = itertools.count(1 << 23)

Saved = Callable[[int], None]


class ScriptedProcess:
    """Has a pid that no process has."""

    def __init__(self, order: RankOrder | None = None) -> None:
        self.pid = next(_pids)
        self.order = order
        self.exitcode: int | None = None

    def kill(self) -> None:
        """Ended."""
        self.exitcode = -9


class ScriptedRank:
    """In place of :class:`holdfast.agent.ranks.processes.Watched`."""

    def __init__(
        self, process: ScriptedProcess, rank: int, on_exit: Callable[[Any], None] | None = None
    ) -> None:
        self.rank = rank
        self.pid = process.pid
        self.family = {process.pid}
        self.expected = self.ordered = False
        self.exit_code: int | None = None
        self.gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._on_exit = on_exit
        self._begun = time.monotonic()
        self._order = process.order
        if process.order is not None:
            Script.of(process.order).join(process.order)

    def expect(self) -> None:
        """Its end is ordered."""
        self.expected = True

    def kill(self) -> None:
        """It is gone at once."""
        self.expect()
        self.end(-9)

    def terminate(self) -> bool:
        """It has no handler for SIGTERM."""
        self.expected = True
        return False

    def watch(self, on_exit: Callable[[Any], None] | None) -> None:
        """The receiver of the report of its end."""
        self.expected = on_exit is None
        self._on_exit = on_exit

    def end(self, code: int) -> None:
        """It ended."""
        if self.gone.done():
            return
        self.exit_code = code
        self.gone.set_result(code)
        if self._order is not None:
            Script.tear(self._order.env[wire.ENV_JOB], self._order.epoch)
        if self._on_exit is not None and not self.expected:
            self._on_exit(self)

    def usage(self) -> tuple[float, str]:
        """A rank that computes."""
        return (0.0, "") if self.gone.done() else (time.monotonic() - self._begun, "R")

    def work(self) -> tuple[float, int]:
        """It starts nothing, and reads nothing."""
        return 0.0, 0


class Script:
    """All ranks of one epoch of a job: as in a collective, all of them make a step, or none does."""

    running: ClassVar[dict[tuple[str, str], Script]] = {}
    """By job and epoch."""
    saved: ClassVar[dict[str, Saved]] = {}
    """By the folder of a machine's sockets: who keeps what its ranks save."""

    def __init__(self, order: RankOrder) -> None:
        self._world = int(order.env["WORLD_SIZE"])
        self._step = int(json.loads(order.env[wire.ENV_RESTORE])["step"])
        self._orders: dict[int, RankOrder] = {}
        self._senders: dict[str, wire.Sender] = {}
        self._task: asyncio.Task[None] | None = None
        self._broken = False

    @classmethod
    def of(cls, order: RankOrder) -> Script:
        """The script of a rank's epoch."""
        key = (order.env[wire.ENV_JOB], order.env[wire.ENV_EPOCH])
        if key not in cls.running:
            cls.running = {known: each for known, each in cls.running.items() if not each._broken}
            cls.running[key] = cls(order)
        return cls.running[key]

    @classmethod
    def tear(cls, job: str, epoch: int) -> None:
        """A rank of it died without a word: the others wait for it."""
        if (script := cls.running.get((job, str(epoch)))) is not None:
            script.end()

    def join(self, order: RankOrder) -> None:
        """A rank is there."""
        self._orders[order.rank] = order
        self._senders.setdefault(order.socket, wire.Sender(order.socket))
        if len(self._orders) == self._world and not self._broken:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """No further step is made."""
        self._broken = True
        if self._task is not None:
            self._task.cancel()
        self._senders.clear()  # closes their sockets

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_STEP_S)
        await self._tickets()
        machines: defaultdict[str, list[RankOrder]] = defaultdict(list)
        for order in self._orders.values():
            machines[order.socket].append(order)
        while True:
            self._step += 1
            at = time.time()
            for socket, orders in machines.items():
                for order in orders:
                    self._senders[socket].send(_step(order.rank, order.epoch, self._step, at))
                keep = self.saved.get(str(Path(socket).parent))
                if keep is not None:
                    keep(self._step)
                await asyncio.sleep(0)  # agents are served in between
            await asyncio.sleep(STEP_S)

    async def _tickets(self) -> None:
        """Agents say where the state is, once they have it."""
        tickets = [json.loads(order.env[wire.ENV_RESTORE])["ticket"] for order in self._orders.values()]
        waiting = [Path(path) for path in tickets if path]
        while waiting := [path for path in waiting if not path.exists()]:  # noqa: ASYNC110  (files)
            await asyncio.sleep(0.05)


def _step(rank: int, epoch: int, step: int, at: float) -> dict[str, Any]:
    phases = {"data": 0.02, "forward": 1.6, "backward": 3.1, "optimizer": 0.2, "checkpoint": 0.01}
    return {
        "t": "step",
        "rank": rank,
        "epoch": epoch,
        "step": step,
        "at": at,
        "s": STEP_S,
        "loss": 2.0 + 0.01 * random.random(),
        "grad_norm": 1.0,
        "mfu": 0.41,
        "phases": phases,
    }


class ScriptedForks:
    """In place of the fork server."""

    warm = True
    waiting = 1 << 30
    """Nothing is ever short."""
    pid = 0
    """No process, so nothing is below it."""
    replaced = False

    def __init__(self, _preload: object, _given: object = None) -> None:
        """Nothing is preloaded."""

    def forked(self, _process: object) -> bool:
        """None of this machine's processes is another one's."""
        return False

    async def warm_up(self) -> None:
        """It is."""

    async def keep_spares(self, _want: object) -> None:
        """None are needed."""
        await asyncio.Event().wait()

    def run(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ScriptedProcess:
        """A rank, or the store where ranks would meet."""
        if target is run_rank:
            return ScriptedProcess(args[0])
        if target is rendezvous.serve:
            Path(args[0]).write_text("1")
            return ScriptedProcess()
        raise NotImplementedError(f"{target.__name__} is not scripted")

    async def run_soon(self, target: Callable[..., None], args: tuple[Any, ...] = ()) -> ScriptedProcess:
        """As :meth:`run`."""
        return self.run(target, args)

    fork_soon = run_soon
    fork = run
