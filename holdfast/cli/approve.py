"""``approve`` and ``wait``: answer what a playbook asks, and wait for a job's end."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from holdfast.cli import context
from holdfast.cli.arguments import IncidentName, JobName, finite
from holdfast.cli.output import AsJson, report
from holdfast.client.gateway import Gateway
from holdfast.errors import UnavailableError
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import JobState

EXIT_DONE, EXIT_STILL_RUNNING, EXIT_STOPPED, EXIT_NEEDS_HUMAN, EXIT_STOPPED_BY_PLAYBOOK = 0, 2, 10, 11, 12
_POLL_S = 0.5


def approve(
    incident_id: IncidentName,
    no: Annotated[
        bool, typer.Option("--no", help="Refuse instead: the playbook leaves it to a person.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; goes into the incident report.")] = "",
    as_json: AsJson = False,
) -> None:
    """Approve what a playbook asks before it acts; it goes on at once."""
    with context.gateway() as gateway:
        gateway.approve(incident_id, approve=not no, reason=reason)
    report(
        as_json, f"{incident_id}: {'refused' if no else 'approved'}.", incident=incident_id, approved=not no
    )


def wait(
    job: JobName,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds; 0: for ever.", callback=finite)
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Wait until a job has ended; the exit status is how it ended.

    0 done, 2 still running at the timeout, 10 stopped by a person, 11 failed and needs a human, 12 stopped by a
    playbook whose ladder ends so.
    """
    deadline = time.monotonic() + timeout_s if timeout_s else None
    answered = False
    with context.gateway() as gateway:
        while True:
            try:
                found, answered = ended(gateway, job), True
            except UnavailableError:
                # A gateway that is restarted, or replaced by another one, ends no job.
                if not answered:
                    raise
                found = None
            if found is None and deadline is not None and time.monotonic() > deadline:
                found = EXIT_STILL_RUNNING, "still running."
            if found:
                break
            time.sleep(_POLL_S)
    status, how = found
    report(as_json, f"{job}: {how}", job=job, status=status)
    raise typer.Exit(status)


def ended(gateway: Gateway, name: str) -> tuple[int, str] | None:
    """Return the exit status of a job that ended, and how it did; None while it has not."""
    job = gateway.job(name)
    state = job.state
    if state is JobState.DONE:
        return EXIT_DONE, "done."
    if state not in (JobState.STOPPED, JobState.FAILED):
        return None
    # Not those of a former job of this name.
    mine = [each for each in gateway.incidents(name) if each.opened_at >= job.submitted_at]
    newest: Incident | None = next(iter(mine), None)
    why = newest.summary if newest else ""
    if state is JobState.FAILED:
        return EXIT_NEEDS_HUMAN, f"failed, needs a human: {why}"
    if newest is not None and newest.state is IncidentState.STOPPED:
        return EXIT_STOPPED_BY_PLAYBOOK, f"stopped by the playbook of {newest.id}: {why}"
    return EXIT_STOPPED, "stopped."
