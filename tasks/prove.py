"""Steps: prove the checkpoints that would be restored, while the job runs; keep the proven ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.agent.client import AgentClient
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.models.agent import Prove
from holdfast.models.base import Frozen
from holdfast.models.checkpoint import RemoteCheckpoint, Tier
from holdfast.models.machine import Machine
from holdfast.models.rehearsal import Rehearsal, RehearsalOutcome
from holdfast.operations import fleet
from holdfast.storage.checkpoints.remote import manifests
from holdfast.tasks.recovery_context import RecoveryContext

PROVE_S = 240.0
"""Bound of each proof here: the run must not be taken for silent."""
MOST_RANKS = 8
MOST_CHECKPOINTS = 3
"""Number of checkpoints in S3, newest first: an older one is likely to have the same fault."""


class ProvenCopies(Frozen):
    """Results of the proofs of the accused ranks' shards."""

    found: tuple[Rehearsal, ...] = ()

    @property
    def failed(self) -> tuple[Rehearsal, ...]:
        """Proofs of shards that would not restore."""
        return tuple(one for one in self.found if one.outcome is RehearsalOutcome.FAILED)

    def proven(self, tier: Tier) -> bool:
        """Return whether all shards found in a tier are proven, and some were found."""
        here = [one for one in self.found if one.tier is tier and one.proof is not None]
        return bool(here) and all(one.outcome is RehearsalOutcome.PROVEN for one in here)

    def summary(self, tier: Tier) -> str:
        """Return the result for a tier in a few words."""
        here = [one for one in self.found if one.tier is tier]
        if self.proven(tier):
            return f"proven at step {min(one.step for one in here if one.proof)}"
        failed = [one for one in here if one.outcome is RehearsalOutcome.FAILED]
        if failed:
            return "not restorable either"
        return here[0].result if here else "there is none"


@task(task_run_name="prove the copies of {case.job}")
async def prove_copies(case: RecoveryContext) -> ProvenCopies:
    """Prove the accused ranks' newest shards again, where they were saved and where their copies lie."""

    async def act() -> dict[str, Any]:
        job = case.job_now()
        ranks = list(_accused(case) or range(job.spec.world_size))[:MOST_RANKS]
        found: list[Rehearsal] = []
        for tier in (Tier.MEMORY, Tier.PEER):
            # A copy lies on another machine than the rank's own; only the machines have the record of which.
            mine = {
                name: tuple(rank for rank in ranks if (job.machine_of(rank) == name) is (tier is Tier.MEMORY))
                for name in job.machines
            }
            found += await _prove(case, tier, {name: some for name, some in mine.items() if some})
        return ProvenCopies(found=tuple(found)).model_dump(mode="json")

    copies = ProvenCopies.model_validate(await case.once("prove", "copies", {}, act))
    for one in copies.found:
        get_run_logger().info(
            "rank %s, %s of %s, step %d: %s", one.rank, one.tier, one.machine, one.step, one.result
        )
    return copies


async def _prove(case: RecoveryContext, tier: Tier, ranks: Mapping[str, tuple[int, ...]]) -> list[Rehearsal]:
    """Have the machines prove those of the shards that they have; return their reports."""

    def prove(agent: AgentClient, machine: Machine) -> Awaitable[list[Rehearsal]]:
        return agent.prove(_order(case, machine, tier=tier, ranks=ranks[machine.name]))

    asked = [machine for machine in case.machines_now() if machine.name in ranks]
    answers = fleet.answered(await fleet.ask(case.ctx, asked, prove))
    return [one for several in answers.values() for one in several if one.step]


@task(task_run_name="keep a proven checkpoint of {case.job} in S3")
async def keep_proven(case: RecoveryContext) -> str:
    """Prove the newest checkpoints in S3; mark those that fail, pin the first that does not. Return a summary."""

    async def act() -> dict[str, Any]:
        try:
            return {"told": await _keep(case)}
        except UnavailableError as error:
            return {"told": f"not tested: {error}"}

    summary = str((await case.once("prove", "s3", {}, act))["told"])
    get_run_logger().info("S3: %s", summary)
    return summary


async def _keep(case: RecoveryContext) -> str:
    ctx = case.ctx
    listed = await asyncio.to_thread(manifests.list_remote, ctx.store, case.job)
    usable = [each for each in listed if not each.suspect]
    failed: list[str] = []
    for checkpoint in usable[:MOST_CHECKPOINTS]:
        found = await _prove_remote(case, checkpoint)
        if found.outcome is RehearsalOutcome.UNTESTED:
            return f"step {checkpoint.step} is {found.result}"
        if found.outcome is RehearsalOutcome.PROVEN:
            why = f"{case.incident_id}: newer checkpoints may not restore"
            await asyncio.to_thread(manifests.pin, ctx.store, checkpoint, why)
            more = f" ({', '.join(failed)} marked suspect)" if failed else ""
            return f"step {checkpoint.step} is {found.result}; pinned{more}"
        why = f"not restorable: {found.result}"
        await asyncio.to_thread(manifests.mark_suspect, ctx.store, checkpoint, why)
        ctx.ledger.refuse_checkpoint(checkpoint, why)
        failed.append(f"step {checkpoint.step}")
    return f"nothing there is proven ({', '.join(failed)} marked suspect)" if failed else "there is none"


async def _prove_remote(case: RecoveryContext, checkpoint: RemoteCheckpoint) -> Rehearsal:
    """Prove a checkpoint on the first machine of the job that can."""
    why = "no machine of the job answers"
    for machine in case.machines_now()[:MOST_CHECKPOINTS]:
        order = _order(
            case,
            machine,
            tier=Tier.S3,
            key=checkpoint.key,
            step=checkpoint.step,
            epoch=checkpoint.epoch,
            trusting=True,  # a fixed script may allow what today's does not: no reason to mark it suspect
        )
        try:
            (found,) = await case.ctx.agent(machine).prove(order)
        except HoldfastError as error:
            why = str(error)
            continue
        return found
    raise UnavailableError(why)


def _order(case: RecoveryContext, machine: Machine, **what: Any) -> Prove:
    return Prove(job=case.job, incarnation=machine.incarnation, timeout_s=PROVE_S, **what)


def _accused(case: RecoveryContext) -> Sequence[int]:
    return sorted({alert.rank for alert in case.incident.alerts if alert.rank is not None})
