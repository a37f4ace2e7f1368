"""Machines: a host, its agent, and its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent import server
from holdfast.models.checkpoint import Shard
from holdfast.models.roles import Member
from tests.nemesis import replicas
from tests.nemesis.agents import SimAgent
from tests.nemesis.scheduler import Process
from tests.nemesis.training import KEPT, RankProcess

if TYPE_CHECKING:
    from tests.nemesis.site import Site


class Host:
    """A machine with power, or without."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.up = False
        self.forsaken = False
        """Its engine took it out of service without reaching it."""
        self.units = 0
        self.lives = 0
        self.unit = ""
        self.agent: Process | None = None
        self.speaker: SimAgent | None = None
        self.children: list[RankProcess] = []
        self.shards: dict[tuple[str, int, str, int], Shard] = {}
        self.announced: dict[replicas.Key, int] = {}
        self.members: dict[str, tuple[Member, ...]] = {}
        """As its processes see them, by job."""
        self.breaks_replicas = False
        """Whatever replica is started on it fails."""

    def boot(self, after_s: float = 0.0) -> None:
        """Power on, as a new unit of the engine."""
        self.site.scheduler.after(after_s, self._boot)

    def _boot(self) -> None:
        if self.up:
            return
        self.units += 1
        self.unit = f"{self.name}u{self.units}"
        self.up, self.forsaken = True, False
        self.site.blamed.discard(self.name)
        self.site.network.down.discard(self.name)
        self.shards.clear()
        self.start_agent()

    def start_agent(self) -> None:
        """Start it, unless it runs or there is no power."""
        if not self.up or (self.agent is not None and self.agent.alive):
            return
        self.lives += 1
        process = Process(self.site.scheduler, f"agent {self.name}.{self.lives}", self.name)
        self.agent = process
        process.on_kill.append(lambda: self.end_ranks("their agent ended"))
        process.start(self._live(process))

    async def _live(self, process: Process) -> None:
        self.speaker = agent = SimAgent(self, process)
        self.site.network.listen(agent.address, process, server.build(agent))
        status = await agent.live()
        self.site.note("agent-exit", on=self.name, status=status)
        process.kill()

    def kill_agent(self) -> None:
        """SIGKILL: ranks end with it."""
        if self.agent is not None:
            self.agent.kill()

    def die(self, why: str) -> None:
        """Power off: everything on it is gone at once."""
        if not self.up:
            return
        self.up = False
        for child in list(self.children):
            child.end(-9, why)
        self.shards.clear()
        self.kill_agent()

    def end_ranks(self, why: str) -> None:
        """As the kernel does when the agent, their parent, dies."""
        for child in list(self.children):
            child.end(-9, why)

    def ranks(self) -> list[RankProcess]:
        """Ranks of jobs that live here."""
        return [child for child in self.children if child.run is not None]

    def save(self, shard: Shard) -> None:
        """Keep it, and the one before it."""
        key = shard.job, shard.rank, shard.tier.value
        self.shards[*key, shard.step] = shard
        steps = sorted(step for *of, step in self.shards if tuple(of) == key)
        for step in steps[:-KEPT]:
            del self.shards[*key, step]
