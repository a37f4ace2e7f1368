"""From where a job would be restored now: the restore policy's answer to what its machines and S3 hold."""

from __future__ import annotations

import asyncio

from holdfast import secret, tls
from holdfast.agent.client import AgentClient
from holdfast.cli import context
from holdfast.client.gateway import understood
from holdfast.errors import HoldfastError
from holdfast.models.agent import AgentState
from holdfast.models.checkpoint import RestorePlan
from holdfast.models.history import Epoch
from holdfast.models.machine import Machine
from holdfast.policies.restore import lineage, restore_plan
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.objects import ObjectStore

_ANSWER_S = 3.0


def plan(store: ObjectStore, job_name: str) -> RestorePlan:
    """Ask every machine of the job, and choose as a playbook would. Changes nothing.

    Machines that do not answer are left out, and reported.

    Raises:
        UnavailableError: the gateway does not answer.
        UnknownError: it does not know the job.
    """
    with context.gateway() as gateway:
        job = gateway.job(job_name)
        machines = [machine for machine in gateway.machines() if machine.name in job.machines]
        epochs = [understood(Epoch, row) for row in gateway.history(job_name)["epochs"]]
    states, silent = asyncio.run(_ask(machines))
    shards = [shard for state in states for shard in state.shards if shard.job == job_name]
    homes = {rank: job.machine_of(rank) for rank in range(job.spec.world_size)} if job.machines else {}
    made = restore_plan.choose(
        lineage.valid(shards, epochs),
        lineage.valid(manifests.list_remote(store, job_name), epochs),
        job.spec.world_size,
        homes,
        refused=[f"machine {name} does not answer" for name in silent],
    )
    if made.tier is None and any(epoch.last_step for epoch in epochs):
        asked = "if it ever saved a state, a person is asked first (`restore.from_scratch`)"
        made = made.model_copy(update={"reasons": (*made.reasons, asked)})
    return made


async def _ask(machines: list[Machine]) -> tuple[list[AgentState], list[str]]:
    known = context.settings()
    token, certified = secret.of(known), tls.of(known)

    async def ask(machine: Machine) -> AgentState | None:
        try:
            async with AgentClient(machine.address, token, tls=certified) as agent:
                return await agent.state(timeout_s=_ANSWER_S)
        except HoldfastError:
            return None

    answers = await asyncio.gather(*(ask(machine) for machine in machines))
    silent = [machine.name for machine, answer in zip(machines, answers, strict=True) if answer is None]
    return [answer for answer in answers if answer is not None], silent
