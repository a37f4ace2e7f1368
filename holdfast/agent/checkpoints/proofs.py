"""Proofs on command: from an operator (``holdfast doctor JOB``), or from a playbook."""

from __future__ import annotations

from holdfast.agent.checkpoints.prover import Prover
from holdfast.agent.checkpoints.rehearsals import Rehearsals
from holdfast.agent.ranks.run import Run
from holdfast.models.agent import Prove
from holdfast.models.checkpoint import Tier
from holdfast.models.rehearsal import Rehearsal


async def proofs(command: Prove, prover: Prover, rehearsals: Rehearsals, run: Run | None) -> list[Rehearsal]:
    """Prove the shards; results for ranks that run here also count as their rehearsal."""
    allowed = run.allowed(run.start.ranks[0]) if run is not None and not command.trusting else None
    if command.key:
        return [await prover.checkpoint(command.job, command.step, command.epoch, command.key, allowed)]
    found = []
    for rank in command.ranks or prover.ranks(command.job, command.tier):
        one = await prover.shard(command.job, rank, command.tier, allowed)
        if run is not None and command.tier is Tier.MEMORY and one.epoch == run.start.epoch:
            rehearsals.note(run, one)
        found.append(one)
    return found
