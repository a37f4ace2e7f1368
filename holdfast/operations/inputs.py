"""Inputs of an incident's decisions, recorded when it is taken up, for a replay of it."""

from __future__ import annotations

from holdfast.models.job import Job
from holdfast.models.machine import MachineState
from holdfast.operations.context import Context
from holdfast.storage.ledger.inputs import taken_up


def note_taken_up(ctx: Context, incident_id: str, job: Job, rounds: int) -> None:
    """Record the inputs of later decisions, and what changes from then on; the first of a round are kept."""
    spares = ctx.ledger.machines(state=MachineState.STANDBY)
    body = {
        "job": job.model_dump(mode="json"),
        "standbys": {each.name: each.incarnation for each in spares},
        "fleet": ctx.ledger.fleet_size(),
    }
    ctx.ledger.note_input(incident_id, taken_up(rounds), body)
