"""``doctor JOB``: proves, now, that what a job has saved can be restored; by its agents, beside the training."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import typer
from rich.text import Text

from holdfast import secret, tls
from holdfast.agent.client import AgentClient
from holdfast.cli import context
from holdfast.cli.output import print_json, print_table, say
from holdfast.errors import HoldfastError, RefusedError
from holdfast.models.agent import Prove
from holdfast.models.checkpoint import RemoteCheckpoint, Tier
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.models.rehearsal import Rehearsal, RehearsalOutcome
from holdfast.storage import objects
from holdfast.storage.checkpoints.remote import manifests

PROVE_S = 1800.0
_COLOURS = {
    RehearsalOutcome.PROVEN: "green",
    RehearsalOutcome.FAILED: "bold red",
    RehearsalOutcome.UNTESTED: "yellow",
}


def show(name: str, as_json: bool) -> None:
    """Prove and print; status 1 when something could not be restored.

    Raises:
        UnknownError: no such job.
        RefusedError: no machine serves it: nothing of it lies in memory.
        UnavailableError: the gateway does not answer.
    """
    with context.gateway() as gateway:
        job = gateway.job(name)
        machines = [each for each in gateway.machines() if each.name in job.machines]
    if not machines:
        raise RefusedError(
            f"job {name!r} is {job.state} and has no machines to prove anything: `holdfast checkpoints verify {name}` "
            "reads its newest checkpoint in S3"
        )
    found = asyncio.run(_prove(job, machines))
    if as_json:
        print_json([_facts(each) for each in found])
    else:
        print_table(
            f"Restore of {name}", ("RANK", "MACHINE", "TIER", "STEP", "RESULT", "PATH"), _rows(found), ""
        )
        say(_verdict(name, found))
    if any(each.outcome is RehearsalOutcome.FAILED for each in found):
        raise typer.Exit(1)


async def _prove(job: Job, machines: Sequence[Machine]) -> list[Rehearsal]:
    known = context.settings()
    token, certified = secret.of(known), tls.of(known)

    async def on(machine: Machine, ranks: Sequence[int]) -> list[Rehearsal]:
        """Test the shards of the machine's ranks, then the copies that it keeps for others."""

        async def ask(tier: Tier, **what: Any) -> list[Rehearsal]:
            order = Prove(
                job=job.spec.name, incarnation=machine.incarnation, tier=tier, timeout_s=PROVE_S, **what
            )
            async with AgentClient(machine.address, token, tls=certified) as agent:
                return await agent.prove(order)

        untested = Rehearsal(job=job.spec.name, machine=machine.name, tier=Tier.MEMORY)
        own = await _or_untested(lambda: ask(Tier.MEMORY, ranks=tuple(ranks)), untested, ranks)
        peers = await _or_untested(
            lambda: ask(Tier.PEER), untested.model_copy(update={"tier": Tier.PEER}), ()
        )
        return [*own, *peers]

    async def stored() -> list[Rehearsal]:
        untested = Rehearsal(job=job.spec.name, tier=Tier.S3)
        try:
            newest = await asyncio.to_thread(_newest, job.spec.name)
        except HoldfastError as error:
            return [untested.model_copy(update={"why_not": str(error)})]
        if newest is None:
            return [untested.model_copy(update={"why_not": "there is no checkpoint that may be restored"})]
        where = {"key": newest.key, "step": newest.step, "epoch": newest.epoch}
        first = machines[0]
        order = Prove(
            job=job.spec.name, incarnation=first.incarnation, tier=Tier.S3, timeout_s=PROVE_S, **where
        )

        async def ask() -> list[Rehearsal]:
            async with AgentClient(first.address, token, tls=certified) as agent:
                return await agent.prove(order)

        return await _or_untested(ask, untested.model_copy(update={"step": newest.step}), (None,))

    answers = await asyncio.gather(
        *(on(machine, job.ranks_of(machine.name)) for machine in machines), stored()
    )
    return [each for several in answers for each in several]


async def _or_untested(
    ask: Callable[[], Awaitable[list[Rehearsal]]], untested: Rehearsal, ranks: Sequence[int | None]
) -> list[Rehearsal]:
    """Return the rehearsals that were found; for a machine that does not answer, ``untested`` for each rank."""
    try:
        return await ask()
    except HoldfastError as error:
        return [untested.model_copy(update={"rank": rank, "why_not": str(error)}) for rank in ranks]


def _newest(name: str) -> RemoteCheckpoint | None:
    return manifests.latest(objects.from_settings(context.settings()), name)


def _facts(found: Rehearsal) -> dict[str, Any]:
    return found.model_dump(mode="json") | {"outcome": found.outcome.value, "told": found.result}


def _rows(found: Sequence[Rehearsal]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for each in found:
        result = Text(each.outcome.value, style=_COLOURS[each.outcome])
        problems = each.proof.problems if each.proof and not each.proof.ok else ()
        left_out = each.proof.untested if each.proof else ()
        lines = [str(line) for line in problems] + [f"not tested: {line}" for line in left_out]
        rank = "all" if each.rank is None else each.rank
        rows.append(
            (rank, each.machine, each.tier.value, each.step or "", result, "\n".join(lines) or each.why_not)
        )
    return rows


def _verdict(name: str, found: Sequence[Rehearsal]) -> str:
    failed = [each for each in found if each.outcome is RehearsalOutcome.FAILED]
    if failed:
        return (
            f"{len(failed)} of {len(found)} would not come back. Change what is saved at these paths and "
            f"`holdfast update {name}`; older checkpoints: `holdfast checkpoints ls {name}`."
        )
    untested = sum(each.outcome is RehearsalOutcome.UNTESTED for each in found)
    return f"{len(found) - untested} proven" + (f", {untested} not tested" if untested else "") + "."
