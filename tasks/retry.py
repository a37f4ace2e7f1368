"""Step: choose the rung of the ladder: retry, rollback, replay, or ask a human."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from holdfast.models.alert import Incident, IncidentState, Rung
from holdfast.policies import code, ladder
from holdfast.tasks.case import Case
from holdfast.tasks.context import Context


@task(task_run_name="choose the rung")
async def climb(case: Case) -> Rung:
    """The next rung for this job: higher when lower ones did not bring progress."""

    async def act() -> dict[str, Any]:
        ctx = case.ctx
        job = case.job_now()
        decision = ladder.next_rung(
            history=past_incidents(ctx, case.incident),
            done_rungs=tuple(Rung(str((a.result or {})["rung"])) for a in case.done("rung")),
            policy=ctx.policy.ladder,
            can_rollback=code.last_good(ctx.ledger.versions(job.name), job.code_version) is not None,
        )
        return {"rung": decision.rung.value, "reasons": list(decision.reasons)}

    done = await case.once("rung", f"e{case.broken_epoch}", {}, act)
    get_run_logger().info("rung: %s (%s)", done["rung"], "; ".join(done["reasons"]))
    return Rung(str(done["rung"]))


def past_incidents(ctx: Context, incident: Incident) -> list[ladder.PastIncident]:
    """Earlier recovered incidents of the job, oldest first, with the progress made after each."""
    ledger = ctx.ledger
    earlier = [
        past
        for past in reversed(ledger.incidents(job=incident.job))
        if past.id != incident.id
        and past.state is IncidentState.RECOVERED
        and past.opened_at < incident.opened_at
    ]
    epochs = ledger.epochs(incident.job)
    facts = []
    for past, following in zip(earlier, [*earlier, incident][1:], strict=True):
        before = max((e.last_step or 0 for e in epochs if e.epoch <= past.epoch), default=0)
        after = max((e.last_step or 0 for e in epochs if e.epoch <= following.epoch), default=0)
        rungs = tuple(
            Rung(str((a.result or {})["rung"]))
            for a in ledger.actions(past.id)
            if a.kind == "rung" and a.state == "done"
        )
        facts.append(
            ladder.PastIncident(
                incident_class=past.incident_class,
                epoch=past.epoch,
                at=past.opened_at,
                rungs=rungs,
                progressed_steps=max(0, after - before),
            )
        )
    return facts
