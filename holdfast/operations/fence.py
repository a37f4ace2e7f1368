"""Stop the ranks of an epoch everywhere, and fence it so that nothing of it can act again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from holdfast.models.agent import AgentState, Settled
from holdfast.models.machine import Machine
from holdfast.operations import fleet
from holdfast.operations.context import Context
from holdfast.policies.restore import kept_processes


@dataclass(frozen=True)
class Fenced:
    """The result of ordering machines to stop; by name."""

    states: Mapping[str, AgentState]
    """The state of each machine, once its ranks were gone."""
    lost: tuple[str, ...] = ()
    """Machines that the order did not reach."""
    silent: tuple[str, ...] = ()
    """Of these, those that may run on: they sent no answer."""
    settled: Mapping[str, Settled] = field(default_factory=dict)
    """All that each machine answered."""
    kept: int = 0
    """Ranks whose process was kept, and waits for the next epoch."""
    not_kept: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks whose process might have been kept and was ended, by the reason."""


async def fence(
    ctx: Context,
    machines: list[Machine],
    job: str,
    epoch: int,
    *,
    given_up: Collection[str] = (),
    grace_s: float = 0.0,
    keep_s: float = 0.0,
) -> Fenced:
    """Stop ranks of ``job`` up to ``epoch`` on ``machines``; those ``given_up`` already are not waited for long.

    Ranks that handle SIGTERM have ``grace_s`` seconds to end. Processes that may be kept leave the epoch and wait
    ``keep_s`` for the next one.
    """
    answers = await fleet.settle(ctx, machines, job, epoch, given_up=given_up, grace_s=grace_s, keep_s=keep_s)
    settled = fleet.answered(answers)
    return Fenced(
        {name: each.state for name, each in settled.items()},
        lost=fleet.lost(answers),
        silent=fleet.silent(answers),
        settled=settled,
        kept=sum(each.kept for each in settled.values()),
        not_kept=kept_processes.by_reason(
            item for each in settled.values() for item in each.not_kept.items()
        ),
    )


async def halt(ctx: Context, job_name: str) -> None:
    """Stop a job's ranks and leave it to a person: nothing of it runs, its machines stay with it."""
    job = ctx.ledger.job(job_name)
    await fence(ctx, ctx.ledger.machines_named(job.machines), job_name, job.epoch)
