"""A job of one rank on each of a few real agents, started again and again. No test."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from holdfast.models.agent import Fence, OpenRendezvous
from holdfast.models.checkpoint import RemoteCheckpoint, RestoreOrder, RestorePlan, Shard, Tier
from holdfast.policies.restore import restore_plan
from tests.agent.gateway import FakeGateway, events, eventually, until
from tests.agent.site import AgentProcess

NEW = RestorePlan(step=0, tier=None, reasons=("new",))


class Generations:
    """One rank on each machine, each the next one's peer; a generation is an epoch."""

    def __init__(
        self, home: Path, gateway: FakeGateway, environment: Mapping[str, str], *, job: str, script: str
    ) -> None:
        self.home, self.gateway, self.environment = home, gateway, environment
        self.job, self.script = job, script
        self.machines: list[AgentProcess] = []
        self.epoch = 0

    @contextlib.contextmanager
    def on(self, *names: str) -> Iterator[Self]:
        """Agents of these machines are there."""
        self.machines = [self.machine(name) for name in names]
        try:
            for each in self.machines:
                each.ready(150)
            yield self
        finally:
            self.end()

    def machine(self, name: str) -> AgentProcess:
        return AgentProcess(self.home, name, self.gateway, **self.environment)

    async def start(self, plan: RestorePlan, *args: str, env: Mapping[str, str], **options: Any) -> None:
        """Start a new epoch from what the plan names; ``options`` of the start command, as ``s3_every_steps``."""
        self.epoch += 1
        order = self._order(plan)
        first = self.machines[0]
        async with first.client as client:
            rendezvous = await client.open_rendezvous(
                OpenRendezvous(
                    job=self.job,
                    epoch=self.epoch,
                    incarnation=first.incarnation,
                    world_size=len(self.machines),
                )
            )

        async def one(rank: int, machine: AgentProcess) -> None:
            machine.script(self.job, self.script)
            peer = self.machines[(rank + 1) % len(self.machines)]
            command = machine.start(
                self.job,
                self.epoch,
                args=args,
                env=dict(env),
                ranks=(rank,),
                world_size=len(self.machines),
                rendezvous=rendezvous,
                restore=order,
                peer=peer.data_address if peer is not machine else "",
                peer_machine=peer.machine,
                **options,
            )
            async with machine.client as client:
                await client.start(command)

        await asyncio.gather(*(one(rank, each) for rank, each in enumerate(self.machines)))

    def _order(self, plan: RestorePlan) -> RestoreOrder:
        address_of = {each.machine: each.data_address for each in self.machines}
        return RestoreOrder(
            step=plan.step,
            epoch=plan.epoch,
            tier=plan.tier,
            sources=tuple(
                each.model_copy(update={"address": address_of.get(each.machine, "")}) for each in plan.sources
            ),
            key=plan.remote.key if plan.remote else "",
        )

    async def shards(self) -> list[Shard]:
        found: list[Shard] = []
        for machine in self.machines:
            async with machine.client as client:
                found += [each for each in (await client.state()).shards if each.job == self.job]
        return found

    async def held(self, since: int, tier: Tier) -> int:
        """Wait until all shards of a step from ``since`` on lie in a tier; the newest such step."""
        ranks = range(len(self.machines))
        whole: list[int] = []

        async def there() -> bool:
            held = {(each.rank, each.step) for each in await self.shards() if each.tier is tier}
            whole[:] = [step for _, step in held if step >= since and {(r, step) for r in ranks} <= held]
            return bool(whole)

        await eventually(there, 120)
        return max(whole)

    def uploaded(self) -> list[RemoteCheckpoint]:
        """Checkpoints that agents reported complete in S3, oldest first."""
        return [each for report in events(self.gateway, self.job) for each in report.checkpoints]

    def stored(self, since: int, epoch: int = 0) -> RemoteCheckpoint:
        """A checkpoint in S3 of a step from ``since`` on, of an epoch from ``epoch`` on, once it is complete."""

        def found() -> list[RemoteCheckpoint]:
            return [each for each in self.uploaded() if each.step >= since and each.epoch >= epoch]

        return until(found, 120)[0]

    async def plan(self, *remotes: RemoteCheckpoint) -> RestorePlan:
        places = {rank: machine.machine for rank, machine in enumerate(self.machines)}
        return restore_plan.choose(await self.shards(), remotes, len(self.machines), places)

    async def fence(self) -> None:
        for machine in self.machines:
            async with machine.client as client:
                await client.fence(Fence(job=self.job, epoch=self.epoch, incarnation=machine.incarnation))

    def lose(self, number: int, *, disk: bool) -> None:
        """A machine's agent and ranks die, and its memory is gone."""
        machine = self.machines[number]
        machine.stop(signal.SIGKILL)
        shutil.rmtree(machine.shm)
        if disk:
            shutil.rmtree(machine.folder)

    def again(self) -> None:
        """Agents of the same machines."""
        self.machines[:] = [self.machine(each.machine) for each in self.machines]
        for each in self.machines:
            each.ready(150)

    def end(self) -> None:
        for machine in self.machines:
            machine.stop(signal.SIGKILL)
            shutil.rmtree(machine.folder, ignore_errors=True)
            shutil.rmtree(machine.shm, ignore_errors=True)
