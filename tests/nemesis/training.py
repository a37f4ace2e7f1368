"""Ranks that train: they step together, save to their machine's memory and its peer's, and fall when a peer falls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.agent.ranks.processes import Watched
from holdfast.models.checkpoint import Shard, Tier
from holdfast.session.keep.run import ALONE_S

if TYPE_CHECKING:
    from tests.nemesis.machines import Host
    from tests.nemesis.site import Site

STEP_S = 0.5
FALLS_AFTER_S = 0.2
LEAVES_AFTER_S = 0.02
KEPT = 2


class RankProcess(Watched):
    """A rank, or a store where ranks meet; a process of its machine, watched by the agent that started it."""

    def __init__(self, host: Host, rank: int, run: Any = None, on_exit: Any = None) -> None:
        self.host, self.rank, self.run = host, rank, run
        self.agent = host.agent
        self.pid = host.site.next_pid()
        self.family = {self.pid}
        self.expected, self.exit_code = False, None
        self.alive, self.stopped, self.cpu_s = True, False, 0.0
        self.why = ""
        self.group: Group | None = None
        self.keeps = bool(run) and host.site.keeps and run.start.replay is None
        """Its script lets its process be kept."""
        self.left = False
        """It is out of its training, and waits for its next epoch."""
        self.gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._told = on_exit
        host.children.append(self)

    def kill(self) -> None:
        """SIGKILL by the agent."""
        self.expected = True
        self.end(-9, "agent")

    def watch(self, on_exit: Any) -> None:
        """As :meth:`Watched.watch`."""
        self.expected, self._told = on_exit is None, on_exit

    def leave(self, lost: dict[str, Any] | None = None) -> None:
        """Leave the training: its agent ordered it, or it ``lost`` a peer and waits for a word of its agent."""
        if not self.alive or self.stopped or self.group is None:
            return
        group, run = self.group, self.run
        first, self.left = not self.left, True
        if lost is None or first:
            group.say(self, {"t": "left", **(lost or {})})
        if lost is not None and first:
            site = self.host.site
            site.scheduler.after(ALONE_S, lambda: self._alone(run))

    def _alone(self, run: Any) -> None:
        """Nobody asked for it in time."""
        if self.left and self.run is run and not self.expected:
            self.end(1, "peer")

    def join(self, run: Any, on_exit: Any) -> None:
        """Begin another epoch."""
        if self.group is not None:
            del self.group.ranks[self.rank]
        self.run, self.left = run, False
        self.watch(on_exit)

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
        site.scheduler.after(0.002, lambda: self._tell(code))

    def _tell(self, code: int) -> None:
        if self.agent is not None and self.agent.alive:
            self.agent.loop.call_soon(self._ended_with, code)

    def _ended_with(self, code: int) -> None:
        self.exit_code = code
        if not self.gone.done():
            self.gone.set_result(code)
        if self._told is not None and not self.expected:
            self._told(self)


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
        process.group = self
        if not self._ticks:
            self._next()

    @property
    def alive(self) -> list[RankProcess]:
        """Those that live, and train."""
        return [one for one in self.ranks.values() if one.alive and not one.left]

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
        fallen = [one for one in self.ranks.values() if not one.alive or one.left]
        if fallen:
            for one in self.alive:
                if any(self.site.network.is_open(dead.host.name, one.host.name) for dead in fallen):
                    self._fall(one)
        elif all(not one.stopped and self._reaches_all(one) for one in self.alive):
            self._step()

    def _replayed(self) -> None:
        """A replay finds nothing, and ends."""
        for one in self.alive:
            self.say(one, {"t": "replayed", "ok": True})
            self.site.scheduler.after(0.01, lambda one=one: one.end(0, "replayed"))

    def _fall(self, one: RankProcess) -> None:
        said = {
            "error_type": "RuntimeError",
            "message": "[gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        }
        if one.keeps:
            self.site.scheduler.after(LEAVES_AFTER_S, lambda: one.leave(said))
            return
        self.say(one, {"t": "failed", **said})
        self.site.scheduler.after(FALLS_AFTER_S, lambda: one.end(1, "peer"))

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
            self.say(one, {"t": "step", "step": self.step, "at": at, "s": STEP_S, "loss": 1.0})
            self._save(one)

    def _save(self, one: RankProcess) -> None:
        start = one.run.start
        one.host.save(self.shard(one, one.host.name, Tier.MEMORY))
        peer = self.site.hosts.get(start.peer_machine)
        if peer is not None and peer.up and self.site.network.is_open(one.host.name, peer.name):
            peer.save(self.shard(one, peer.name, Tier.PEER))

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

    def say(self, one: RankProcess, message: dict[str, Any]) -> None:
        """Send it to the agent."""
        agent, board = one.agent, one.run.board
        if agent is not None and agent.alive and board is not None:
            agent.loop.call_soon(board._take, message | {"rank": one.rank, "epoch": self.epoch})
