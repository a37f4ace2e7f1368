"""Replicas of roles: the real supervisor over processes, files and marks that are only simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast import roles as environment
from holdfast.agent import wire
from holdfast.agent.ranks.rank_main import RankOrder
from holdfast.models.roles import Member, Restart, RoleSpec
from tests.nemesis.training import RankProcess

if TYPE_CHECKING:
    from tests.nemesis.machines import Host

ROLE = "rollout"
ROLES = {
    ROLE: RoleSpec(
        script="rollout.py",
        replicas=3,
        restart=Restart(pause_s=0.2, longest_pause_s=2.0, failures=3, moves=2),
    ),
    "cache": RoleSpec(kind="ordered", script="cache.py", per_machine=1),
    "reward": RoleSpec(script="reward.py", needs=("cache",), with_trainer="restart"),
}
"""One of each kind: spread; alone on its machine; after another, and restarted with the trainer."""
ANNOUNCES_AFTER_S = 0.3
FAILS_AFTER_S = 0.05
Key = tuple[str, str, int, int]
"""Job, role, index, generation."""


class ReplicaProcess(RankProcess):
    """A replica: it announces its address, and lives until it is ended."""

    def __init__(self, host: Host, order: RankOrder) -> None:
        super().__init__(host, order.rank)
        self.key: Key = (
            order.env[wire.ENV_JOB],
            order.env[environment.ENV_ROLE],
            order.rank,
            order.epoch,
        )
        host.site.replica_started(self)
        if host.breaks_replicas:
            host.site.scheduler.after(FAILS_AFTER_S, lambda: self.end(1, "its machine breaks replicas"))
        else:
            host.site.scheduler.after(ANNOUNCES_AFTER_S, self._announce)

    def _announce(self) -> None:
        if self.alive:
            self.host.announced[self.key] = 4000 + self.rank

    def end(self, code: int, why: str) -> None:
        """It is gone."""
        if self.alive:
            self.host.site.replica_ended(self, why)
        super().end(code, why)


class Files:
    """Members and announcements of one machine; gone with it."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def clear(self) -> None:
        """As when its agent starts."""
        self._host.announced.clear()

    def environment(self, job: str, role: str, index: int, generation: int) -> dict[str, str]:
        """The environment of a replica's process."""
        return {environment.ENV_ROLE: role}

    def show(self, job: str, members: Sequence[Member]) -> None:
        """The processes of a job see them."""
        self._host.members[job] = tuple(members)

    def address(self, job: str, role: str, index: int, generation: int) -> str:
        """The address that a process announced."""
        port = self._host.announced.get((job, role, index, generation))
        return f"{self._host.name}:{port}" if port else ""

    def withdraw(self, job: str, role: str, index: int, generation: int) -> None:
        """Nothing is there any more."""
        self._host.announced.pop((job, role, index, generation), None)

    def forget(self, job: str) -> None:
        """Nothing of the job."""
        self._host.members.pop(job, None)
        for key in [key for key in self._host.announced if key[0] == job]:
            del self._host.announced[key]


class Remains:
    """Marks of processes, by which what is left of one is found."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def open(self, name: str) -> str:
        """Mark what starts from now on."""
        return name

    async def end(self, name: str, *, alone: bool) -> None:
        """A simulated replica starts nothing that could be left."""
        await asyncio.sleep(0.001)


class Nowhere:
    """A folder in which everything is there, and nothing is written."""

    def __truediv__(self, _name: str) -> Nowhere:
        return self

    def __str__(self) -> str:
        return "/sim"

    def mkdir(self, **_named: Any) -> None:
        """It is there."""


class Scratch:
    """No folders of processes."""

    def open(self, _name: str, _env: object) -> dict[str, str]:
        """It gets none."""
        return {}

    def remove(self, _name: str) -> None:
        """There is none."""


def live(host: Host) -> list[ReplicaProcess]:
    """Replicas that live on a machine."""
    return [child for child in host.children if isinstance(child, ReplicaProcess)]


def settled(hosts: Sequence[Host], places: Any, wanted: dict[str, RoleSpec]) -> str:
    """Return what is not yet as it should be; empty: each replica runs once, where it belongs, or a person is asked."""
    running = {(*process.key[1:], host.name) for host in hosts for process in live(host)}
    belong = {
        (each.role, each.index, each.generation, each.machine) for each in places.places if not each.asked
    }
    if running != belong:
        return f"replicas run {sorted(running - belong)}, and should {sorted(belong - running)}"
    there = {(each.role, each.index) for each in places.places}
    missing = [
        (role, index)
        for role, spec in wanted.items()
        for index in range(spec.replicas)
        if (role, index) not in there
    ]
    return f"without a place: {missing}" if missing else ""
