"""Ranks that train: they step together, save to their machine's memory and its peer's, and fall when a peer falls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.agent.ranks.processes import Watched
from holdfast.models.checkpoint import Shard, Tier

if TYPE_CHECKING:
    from tests.nemesis.machines import Host
    from tests.nemesis.site import Site

STEP_S = 0.5
FALLS_AFTER_S = 0.2
KEPT = 2
LEAVES_AFTER_S = 0.4
LEAVES_NOT = 0.1
"""Share of ranks that hang in a call that nothing breaks off."""


class RankProcess(Watched):
    """A rank, or a store where ranks meet; a process of its machine, watched by the agent that started it."""

    def __init__(self, host: Host, rank: int, run: Any = None, on_exit: Any = None) -> None:
        self.host, self.rank, self.run = host, rank, run
        self.agent = host.agent
        self.pid = host.site.next_pid()
        self.family = {self.pid}
        self.expected = self.ordered = False
        self.exit_code: int | None = None
        self.alive, self.stopped, self.cpu_s = True, False, 0.0
        self.why = ""
        self.ahead = False
        """Started beside the epoch that trains, it waits for its state."""
        self.held = False
        self.left = False
        """It left its training function, and waits for the next epoch."""
        self.gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._on_exit = on_exit
        host.children.append(self)

    def _has_ended(self) -> bool:
        return not self.alive

    def watch(self, on_exit: Any) -> None:
        """Set the callback that reports its end from now on."""
        self._on_exit = on_exit

    def leave(self) -> None:
        """Leave the training function, if it can, and report it to the agent."""
        site = self.host.site
        if self.left or site.random.random() < LEAVES_NOT:
            return

        def left() -> None:
            if self.alive and not self.stopped:
                say(self, {"t": "left", "epoch": self.run.start.epoch})
                self.left = True

        site.scheduler.after(LEAVES_AFTER_S * site.random.random(), left)

    def kill(self) -> None:
        """SIGKILL by the agent."""
        self.expected = True
        self.end(-9, "agent")

    def usage(self) -> tuple[float, str]:
        """Processor seconds and the state's letter."""
        return self.cpu_s, "T" if self.stopped else "S"

    def end(self, code: int, why: str) -> None:
        """It is gone; its agent hears of it, if it lives."""
        if not self.alive:
            return
        self.alive, self.why = False, why
        site = self.host.site
        self.host.children.remove(self)
        if self.run is not None:
            site.ended(self, code, why)
        site.scheduler.after(0.002, lambda: self._report_end(code))

    def _report_end(self, code: int) -> None:
        if self.agent is not None and self.agent.alive:
            self.agent.loop.call_soon(self._ended_with, code)

    def _ended_with(self, code: int) -> None:
        self.exit_code = code
        if not self.gone.done():
            self.gone.set_result(code)
        if self._on_exit is not None and not self.expected:
            self._on_exit(self)


class Group:
    """The ranks of one epoch."""

    def __init__(self, site: Site, job: str, epoch: int, size: int, step: int) -> None:
        self.site, self.job, self.epoch, self.size, self.step = site, job, epoch, size, step
        self.ranks: dict[int, RankProcess] = {}
        self.steps_done = 0
        self._ticks = False

    def add(self, process: RankProcess) -> None:
        """A rank was started."""
        self.ranks[process.rank] = process
        if not self._ticks:
            self._next()

    @property
    def alive(self) -> list[RankProcess]:
        """Those that live in this epoch."""
        return [one for one in self.ranks.values() if self._is_in(one)]

    def _is_in(self, one: RankProcess) -> bool:
        return one.alive and not one.left and one.run.start.epoch == self.epoch

    def _next(self) -> None:
        self._ticks = True
        self.site.scheduler.after(STEP_S * (0.9 + 0.2 * self.site.scheduler.random.random()), self._tick)

    def _tick(self) -> None:
        self._ticks = bool(self.alive)
        if not self._ticks:
            return
        self._next()
        if any(one.run.start.replay is not None for one in self.alive):
            self._replayed()
            return
        if len(self.ranks) < self.size:
            return
        fallen = [one for one in self.ranks.values() if not self._is_in(one)]
        if fallen:
            for one in self.alive:
                if any(self.site.network.is_open(dead.host.name, one.host.name) for dead in fallen):
                    self._fall(one)
        elif all(not one.stopped and self._reaches_all(one) for one in self.alive) and not self._hold():
            self._step()

    def _hold(self) -> bool:
        """Ranks with an order to hold wait at this boundary, and with them all."""
        for one in self.alive:
            holds = one.run.held_at is not None and one.run.held_at <= self.step
            if holds is not one.held:
                one.held = holds
                self._say(one, {"t": "held" if holds else "released"})
        return any(one.held for one in self.alive)

    def _replayed(self) -> None:
        """A replay finds nothing, and ends."""
        for one in self.alive:
            self._say(one, {"t": "replayed", "ok": True})
            self.site.scheduler.after(0.01, lambda one=one: one.end(0, "replayed"))

    def _fall(self, one: RankProcess) -> None:
        failure = {
            "error_type": "RuntimeError",
            "message": "[gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        }
        if one.run.board.rows[one.rank].keeps:
            self._say(one, {"t": "left", **failure})
            one.left = True
            return
        self._say(one, {"t": "failed", **failure})
        self.site.scheduler.after(FALLS_AFTER_S, lambda: one.end(1, "peer") if self._is_in(one) else None)

    def _reaches_all(self, one: RankProcess) -> bool:
        hosts = {other.host.name for other in self.alive}
        return all(self.site.network.is_open(one.host.name, name) for name in hosts)

    def _step(self) -> None:
        self.step += 1
        self.steps_done += 1
        self.site.stepped(self)
        for one in self.alive:
            one.cpu_s += STEP_S
            at = self.site.wall(one.host.name)
            self._say(one, {"t": "step", "step": self.step, "at": at, "s": STEP_S, "loss": 1.0})
            self._save(one)

    def _save(self, one: RankProcess) -> None:
        start = one.run.start
        one.host.save(self.shard(one, one.host.name, Tier.MEMORY))
        peer = self.site.hosts.get(start.peer_machine)
        if peer is not None and peer.up and self.site.network.is_open(one.host.name, peer.name):
            peer.save(self.shard(one, peer.name, Tier.PEER))
        joins = self.site.hosts.get(one.run.mirrors_to(self.site.scheduler.now))
        if joins is not None and joins.up and self.site.network.is_open(one.host.name, joins.name):
            joins.save(self.shard(one, joins.name, Tier.PEER))

    def shard(self, one: RankProcess, machine: str, tier: Tier) -> Shard:
        """Of the present step."""
        return Shard(
            job=self.job,
            rank=one.rank,
            step=self.step,
            epoch=self.epoch,
            machine=machine,
            tier=tier,
            nbytes=1,
            digest="d",
            world_size=self.size,
        )

    def _say(self, one: RankProcess, message: dict[str, Any]) -> None:
        say(one, message | {"epoch": self.epoch})


def say(one: RankProcess, message: dict[str, Any]) -> None:
    """Have the rank's agent hear of it."""
    agent, board = one.agent, one.run.board
    if one.alive and agent is not None and agent.alive and board is not None:
        agent.loop.call_soon(board._take, message | {"rank": one.rank})
