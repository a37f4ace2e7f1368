"""Inputs of an incident's decisions, recorded when it is taken up, for a replay of it."""

from __future__ import annotations

from holdfast.models.job import Job
from holdfast.models.machine import MachineState
from holdfast.operations.context import Context
from holdfast.storage.ledger.inputs import answered, taken_up


def note_taken_up(ctx: Context, incident_id: str, job: Job, rounds: int) -> None:
    """Record the inputs of later decisions, and what changes from then on; the first of a round are kept."""
    spares = ctx.ledger.machines(state=MachineState.STANDBY)
    body = {
        "job": job.model_dump(mode="json"),
        "standbys": {each.name: each.incarnation for each in spares},
        "fleet": ctx.ledger.fleet_size(),
        "serving": _serving(ctx, job),
    }
    ctx.ledger.note_input(incident_id, taken_up(rounds), body)


def note_answered(ctx: Context, incident_id: str, job: Job, question: str) -> None:
    """Record the machines as they were when a person's answer was read: some may have restarted meanwhile."""
    body = {"job": job.model_dump(mode="json"), "serving": _serving(ctx, job)}
    ctx.ledger.note_input(incident_id, answered(question), body)


def _serving(ctx: Context, job: Job) -> dict[str, str]:
    """Return the incarnations of the job's machines that serve it."""
    there = ctx.ledger.machines_named(job.machines)
    return {each.name: each.incarnation for each in there if each.serves(job.name)}
