"""The real run of an epoch's ranks, except that forks are simulated; and its patches."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agent.ranks import survivors
from holdfast.agent.ranks.rank_table import RankStatus, RankTable
from holdfast.agent.ranks.reactions import RunEvents
from holdfast.agent.ranks.run import Restored, Run
from tests.nemesis.training import RankProcess, say

if TYPE_CHECKING:
    from tests.nemesis.machines import Host
    from tests.nemesis.parts import Forks
    from tests.nemesis.site import Site

WAITS_AFTER_S = 0.4
"""A rank that was started ahead waits for its state then."""


class SimBoard(RankTable):
    """The real one; messages are handed to it."""

    def __init__(
        self, path: Path, epoch: int, ranks: tuple[int, ...], events: RunEvents, limits: Any
    ) -> None:
        from collections import deque  # noqa: PLC0415

        self.rows = {rank: RankStatus(rank) for rank in ranks}
        self.marks, self.times = deque(maxlen=64), deque(maxlen=8)
        self.path, self._epoch, self._events, self._limits = path, epoch, events, limits
        self._lowest, self._reported_not_finite = min(ranks), False
        self.news = asyncio.Event()

    def close(self) -> None:
        """There is no socket."""

    def drain(self) -> None:
        """Everything was handed over."""


class SimRun(Run):
    """The real one, but for how its ranks are forked."""

    host: Host
    held_at: int | None = None
    mirror: tuple[str, float] = ("", 0.0)
    """The machine that is sent copies, and until when."""

    async def launch(self, forks: Any, code: Path, events: Any, on_exit: Any) -> None:
        """Start all ranks, one after the other."""
        start, host = self.start, self.host
        self._on_exit = on_exit
        self.board = SimBoard(code, start.epoch, start.ranks, events, self._limits)
        site_controls = host.site.controls
        kept: dict[int, Any] = self._go_on(dict.fromkeys(start.ranks, self))  # type: ignore[arg-type]
        late = await survivors.late(kept, self.board.rows, self.start.switch_s)
        await stop([kept[rank] for rank in late])
        for rank, process in self.processes.items():
            if rank in kept:
                self.board.rows[rank].joined = rank not in late
                process.watch(self._exited)
        for rank in start.ranks:
            site_controls[self._control_path(rank)] = self, rank
            if rank in kept and rank not in late and not kept[rank].gone.done():
                continue
            await asyncio.sleep(0.005)
            process = RankProcess(host, rank, self, self._exited)
            process.ahead = self._ahead
            if process.ahead:
                waits = functools.partial(say, process, {"t": "waits", "epoch": start.epoch})
                host.site.scheduler.after(WAITS_AFTER_S, waits)
            elif host.site.shape.kept:
                keeps = functools.partial(say, process, {"t": "keeps", "epoch": start.epoch})
                host.site.scheduler.after(0.05, keeps)
            self.processes[rank] = process
            process.gone.add_done_callback(self._ended)
            self._join(process)

    def go_on(self, process: RankProcess) -> None:
        """A process of an earlier run begins this one's epoch, if it still can."""
        if process.alive and process.left and not process.stopped:
            process.run, process.left, process.held = self, False, False
            say(process, {"t": "joined", "epoch": self.start.epoch})
            self._join(process)

    def _join(self, process: RankProcess) -> None:
        if not process.ahead:
            self.host.site.started(process)
            self.host.site.group(self.start).add(process)

    def hand_over(self, rank: int, restored: Restored) -> None:
        """A rank has its state as soon as it was brought; one that was started ahead joins its epoch with it."""
        process = self.processes.get(rank)
        if isinstance(process, RankProcess) and process.ahead and process.alive:
            process.ahead = False
            self._join(process)

    def hold(self, at_step: int | None) -> None:
        """Its ranks look at it at each boundary."""
        self.held_at = at_step

    def mirrors_to(self, now: float) -> str:
        """Return the machine that is sent copies now; empty: none."""
        name, until = self.mirror
        return name if now < until else ""

    def log_tail(self, rank: int) -> str:
        """Empty: no log is written."""
        return ""


async def stop(processes: list[RankProcess], _grace_s: float = 0.0) -> list[int]:
    """As :func:`holdfast.agent.ranks.processes.stop`."""
    alive = [process for process in processes if not process.gone.done()]
    for process in alive:
        process.kill()
    for process in alive:
        await process.gone
    return sorted(process.rank for process in alive)


def ask_to_leave(site: Site, control: str) -> bool:
    """As :func:`holdfast.agent.ranks.survivors._ask_to_leave`."""
    run, rank = site.controls[control]
    run.processes[rank].leave()
    return True


def order_to_go_on(site: Site, control: str, run: SimRun) -> None:
    """As :func:`holdfast.agent.ranks.survivors.order`."""
    before, rank = site.controls[control]
    site.scheduler.after(0.05, lambda: run.go_on(before.processes[rank]))


async def open_store(forks: Forks, _host: str) -> tuple[RankProcess, int]:
    """As :func:`holdfast.agent.ranks.rendezvous.open_store`."""
    await asyncio.sleep(0.01)
    return RankProcess(forks.host, -1), 1


async def why_not_left(processes: Mapping[int, Any]) -> dict[int, str]:
    """As :func:`holdfast.agent.ranks.survivors.why_not_left`, without a look at real processes."""
    return dict.fromkeys(processes, "it did not leave its training function in time")
