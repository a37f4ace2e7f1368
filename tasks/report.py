"""Step: close the incident, and publish its report: markdown and a table of suspects in the Prefect UI."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed

from holdfast.errors import StaleError
from holdfast.models.alert import BESIDE_TRAINING, Incident, IncidentState, Verdict
from holdfast.models.classes import ON_PURPOSE
from holdfast.models.history import machine_of
from holdfast.models.job import JobState
from holdfast.operations.fence import halt
from holdfast.operations.stop import stop
from holdfast.policies.classify import in_words
from holdfast.storage.ledger.inputs import taken_up
from holdfast.tasks import story
from holdfast.tasks.recovery_context import RecoveryContext


@task(task_run_name="report {case.incident_id}")
async def report(case: RecoveryContext, summary: str, verdict: Verdict | None = None) -> None:
    """Publish what happened and close the incident as recovered; a job that was never stopped goes on as running."""
    _goes_on(case)
    await _close(
        case, IncidentState.RECOVERED, f"{cause(case.incident)}{summary}{_and(case, summary)}", verdict
    )


@task(task_run_name="ask a human about {case.incident_id}")
async def ask_human(case: RecoveryContext, summary: str, verdict: Verdict | None = None) -> None:
    """Stop here: leave the job to a person, its ranks stopped and its machines kept; report why.

    A job that the incident leaves running runs on: only the incident waits for the person.
    """
    if not case.beside:
        await halt(case.ctx, case.job)
    get_run_logger().error("needs a human: %s", summary)
    await _close(case, IncidentState.NEEDS_HUMAN, summary, verdict)


@task(task_run_name="leave {case.job} running")
async def left_running(case: RecoveryContext, summary: str, verdict: Verdict | None = None) -> None:
    """Close the incident of a job that trains on although the intended act was not done: only it needs a person."""
    get_run_logger().warning("needs a human, the job runs on: %s", summary)
    _goes_on(case)
    await _close(case, IncidentState.NEEDS_HUMAN, summary, verdict, runs_on=True)


@task(task_run_name="dismiss {case.incident_id}")
async def dismissed(case: RecoveryContext, summary: str) -> None:
    """Close the incident of a job that trains on, about which nothing is to be done any more."""
    _goes_on(case)
    await _close(case, IncidentState.DISMISSED, summary, None)


@task(task_run_name="stop {case.job} for good")
async def stopped(case: RecoveryContext, summary: str, verdict: Verdict | None = None) -> None:
    """Stop the job at the end of the ladder: fence it, free its machines, close the incident with the reason."""
    get_run_logger().error("stopping the job: %s", summary)
    await stop(case.ctx, case.job, case.ledger)
    await _close(case, IncidentState.STOPPED, summary, verdict)


@task(task_run_name="say what would be done about {case.incident_id}")
async def observed(case: RecoveryContext, summary: str, verdict: Verdict | None = None) -> None:
    """Publish what would be done, in mode ``observe``, and close the incident without touching the job."""
    await _close(case, IncidentState.DISMISSED, f"observe only: {summary}", verdict)


def cause(incident: Incident) -> str:
    """Return what broke as a prefix of the one line that a person reads; empty for what was asked for."""
    beside = incident.incident_class in ON_PURPOSE or incident.incident_class in BESIDE_TRAINING
    then = in_words.since(incident)
    if beside or not incident.reasons:
        return f"{then}: " if then else ""
    return f"{in_words.cause(incident)}{f'; then {then}' if then else ''}: "


def _and(case: RecoveryContext, summary: str) -> str:
    """Return the machines that were replaced and the code that was gone back to, where ``summary`` has not."""
    moves = ", ".join(
        f"{done.result.get('to')} for {machine_of(done.key)}" for done in case.done("swap") if done.result
    )
    added = (
        f"; swapped in {moves}"
        if moves and "swapped in" not in summary and case.incident_class not in ON_PURPOSE
        else ""
    )
    updated, back = (
        [str(done.result.get("to")) for done in case.done(kind) if done.result]
        for kind in ("update", "rollback")
    )
    if back and back[-1] not in summary:
        added += f"; the code was rolled back to {back[-1]}"
    if (switched := [*updated, *back]) and (runs := case.job_now().code_version) != switched[-1]:
        added += f"; it runs {runs}, which was shipped meanwhile"
    return added


def _goes_on(case: RecoveryContext) -> None:
    """Set the job's state after recovery: it runs, or is held as before where it was not restarted."""
    if case.job_now().state is not JobState.RECOVERING:
        return
    found = case.ctx.ledger.inputs(case.incident_id).get(taken_up(case.round), {}).get("job", {})
    touched = case.done("pause") or case.done("start")
    held = found.get("state") == JobState.PAUSED and not touched
    state = JobState.PAUSED if held else JobState.RUNNING
    case.ledger.set_job(case.job, state=state, unless=JobState.STOPPED)


def outcome(case: RecoveryContext) -> State[Any]:
    """Return the flow run's final state, named by how the incident ended."""
    incident = case.incident
    if incident.state is IncidentState.RECOVERED and _look(case):
        return Completed(name="Needs human", message=f"the job runs on: {incident.summary}")
    return Completed(name=incident.state.value.replace("_", " ").capitalize(), message=incident.summary)


def _look(case: RecoveryContext) -> bool:
    """Return whether a person is to look at a failure that comes again and again, though the job goes on."""
    rungs = case.done("rung")
    return bool(rungs and (rungs[-1].result or {}).get("look"))


async def _close(
    case: RecoveryContext,
    state: IncidentState,
    summary: str,
    verdict: Verdict | None,
    *,
    runs_on: bool = False,
) -> None:
    ledger, now = case.ledger, case.ctx.clock.now()
    incident, actions = case.incident, ledger.actions(case.incident_id)
    found, page = verdict or Verdict(), case.ctx.settings.page
    markdown = story.markdown(incident, actions, summary, found, now, page=page)
    await _publish(incident, markdown, summary, found)
    stands = not runs_on and not case.beside
    fails = state is IncidentState.NEEDS_HUMAN and stands
    try:
        ledger.end_incident(case.incident_id, state, summary, now, fails=fails)
    except StaleError as error:
        if case.incident.state is IncidentState.OPEN:
            raise
        get_run_logger().info("%s", error)  # a person stopped the job, or the gateway gave the incident up
        return
    get_run_logger().info("%s: %s", state, summary)


async def _publish(incident: Incident, markdown: str, summary: str, verdict: Verdict) -> None:
    await acreate_markdown_artifact(
        key=f"incident-{incident.id}",
        markdown=markdown,
        description=summary,
    )
    await acreate_table_artifact(
        key=f"suspects-{incident.id}",
        table=story.suspects(incident, verdict) or [{"machine": "none", "why": "no machine was accused"}],
        description=f"Suspects of {incident.id}",
    )
