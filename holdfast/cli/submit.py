"""``submit``: start a job, and see it take its first step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import checkpoint_cost, context, jobfile, roles
from holdfast.cli.arguments import finite
from holdfast.cli.output import AsJson, progress, report
from holdfast.client import job_code
from holdfast.client.gateway import Gateway
from holdfast.errors import RecoveryError, RefusedError, SettingsError
from holdfast.models.alert import AlertKind, Incident, IncidentClass
from holdfast.models.job import ENDED, Job, JobSpec, JobState, no_start
from holdfast.paths import machine_dir
from holdfast.settings import Settings

# A script that fails before its first step will fail again wherever it runs: no playbook can fix it.
_SCRIPT_FAILED = {IncidentClass.USER_CODE_ERROR, IncidentClass.JOB_CRASH}
_REFUSED = ("CheckpointError:", "ScriptRefusedError:")
_RESTORE_FAILED = ("CheckpointError:", "UncoveredError:", "DamagedError:")
FIRST_SAVE_S = 1.0
"""After its first step a job is watched for so long, or until the next one: its first save may be refused."""


def submit(
    job_file: Annotated[
        Path, typer.Argument(metavar="JOBFILE", help="YAML: name, script, code, machines, ...")
    ],
    wait_s: Annotated[
        float,
        typer.Option("--wait", min=0, help="Seconds to wait for the first step; 0: do not.", callback=finite),
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Store the job's code, start the job on free machines, and wait for its first step."""
    spec = jobfile.read(job_file)
    code = job_code.folder(spec.code, job_file.resolve().parent)
    job_code.check_scripts(code, spec)
    if wrong := no_start(spec):
        raise SettingsError(f"job file {job_file}: {wrong}")
    settings = context.of_site()
    with Gateway.open(settings) as gateway:
        refuse_running(gateway, spec.name)
        if former := former_step(gateway, spec.name):
            progress(as_json)(_starts_over(spec, former))
        version = job_code.store(settings, spec.name, code)
        cost = checkpoint_cost.of(spec)
        if not as_json:
            checkpoint_cost.show(cost)
        job = gateway.submit(spec.model_copy(update={"code": str(code)}), version)
        where = f" on {', '.join(job.machines)}" if job.machines else ""
        source = job.spec.start_from
        begins = f" It starts from {source.title}." if source else ""
        warnings = roles.crowded(_status(gateway, job.name)) if spec.roles else []
        line = f"{job.name}: submitted with code {version}{where}.{begins}"
        if warnings:
            line = "\n".join([line, *(f"{each}." for each in warnings)])
        step = 0
        if wait_s:
            progress(as_json)(line)
            step = first_step(gateway, job.spec, code, wait_s)
            line = (
                f"{job.name}: step {step}. Follow it with `holdfast status`."
                if step
                else _without_step(gateway.job(job.name), wait_s, _logs(settings, job))
            )
        report(
            as_json,
            line,
            job=job.name,
            code_version=version,
            machines=job.machines,
            step=step,
            start_from=source.model_dump(mode="json") if source else None,
            checkpoint=checkpoint_cost.as_json(cost),
            warnings=warnings,
        )


def refuse_running(gateway: Gateway, name: str) -> None:
    """Refuse a second job of the same name before anything is stored.

    Raises:
        RefusedError: one of that name has not ended.
    """
    for job in gateway.jobs():
        if job.name == name and job.state not in ENDED:
            raise RefusedError(
                f"job {name!r} is {job.state.value} already: `holdfast stop {name}` first, "
                "ship a change with `holdfast update`, or choose another name."
            )


def former_step(gateway: Gateway, name: str) -> int:
    """Return the step that the former job of this name came to; 0: there was none, or it made no step."""
    if name not in {job.name for job in gateway.jobs()}:
        return 0
    return int(_status(gateway, name)["step"] or 0)


def first_step(gateway: Gateway, spec: JobSpec, code: Path, wait_s: float) -> int:
    """Wait for the first step of the job whose ``code`` was shipped, and return it; 0: it made none so far.

    Of a job that starts from another one's state that is the first one after the step of that state.

    A script that fails before it, or whose first save is refused, is stopped again, so that nothing is left half done.

    Raises:
        RecoveryError: the script failed; the message has its error.
    """
    end = time.monotonic() + wait_s
    since = gateway.job(spec.name).submitted_at
    first, before = 0, spec.start_from.first_step if spec.start_from else 0
    while time.monotonic() < end:
        row = _status(gateway, spec.name)
        step = int(row["step"] or 0)
        if row["state"] == JobState.DONE or step > first > 0:
            return step
        if step > before and not first:
            first, end = step, time.monotonic() + FIRST_SAVE_S
        _raise_if_script_failed(gateway, spec, code, since, first)
        time.sleep(0.2)
    return first


def _status(gateway: Gateway, name: str) -> Mapping[str, Any]:
    """Return the status of this job alone: that of all jobs and machines of a large site takes a while to make."""
    row: Mapping[str, Any] | None = gateway.history(name).get("status")
    return row if row is not None else next(row for row in gateway.status()["jobs"] if row["name"] == name)


def _raise_if_script_failed(gateway: Gateway, spec: JobSpec, code: Path, since: float, step: int) -> None:
    """Look for the script's own error; after a ``step`` only for a refused save: other faults are recovered."""
    for incident in gateway.incidents(spec.name):
        if incident.opened_at < since or not (reason := script_error(incident)):
            continue
        if reason.startswith(_REFUSED) if step else incident.incident_class in _SCRIPT_FAILED:
            gateway.command(spec.name, "stop")
            when = f"at its first save, after step {step}" if step else _before_first_step(spec, reason)
            missing = job_code.explain_missing(code, reason)
            reason = f"{reason}. {missing}" if missing else reason
            raise RecoveryError(
                f"{spec.script} failed {when}, and the job was stopped: {reason}. Fix the "
                f"script and submit again; `holdfast incident {incident.id} --json` has the traceback."
            )


def _before_first_step(spec: JobSpec, reason: str) -> str:
    """Return when a script failed that made no step, from its error."""
    if spec.start_from and reason.startswith(_RESTORE_FAILED):
        return f"at its restore, from {spec.start_from.title}"
    return "before its first step"


def script_error(incident: Incident) -> str:
    """Return the script's own error among an incident's alerts: type, message and place; empty when none is."""
    for alert in incident.alerts:
        evidence = alert.evidence
        if alert.kind is AlertKind.RANK_EXIT and evidence.get("error_type") and not evidence.get("cascade"):
            place = f" ({evidence['user_frame']})" if evidence.get("user_frame") else ""
            return f"{evidence['error_type']}: {evidence.get('message', '')}{place}"
    return ""


def _starts_over(spec: JobSpec, former: int) -> str:
    name, begin = spec.name, "zero" if spec.start_from is None else "its start_from"
    return (
        f"{name}: the former job of this name came to step {former}, and is not continued: this one starts from "
        f"{begin}, and the retention soon keeps only its own checkpoints. To go on with the former one: "
        f"`holdfast resume {name}` in place of submitting it again, or another name with "
        f"`start_from: {{job: {name}}}`. "
        f"`holdfast checkpoints pin {name} STEP` keeps a checkpoint of the former one."
    )


def _without_step(job: Job, wait_s: float, logs: str) -> str:
    printed = f"what its ranks print lies in {logs}."
    if job.state is JobState.DONE:
        return f"{job.name}: done, and no step was reported: all ranks ended with status 0; {printed}"
    return f"{job.name}: no step after {wait_s:.0f} s yet. Follow it with `holdfast status`; {printed}"


def _logs(settings: Settings, job: Job) -> str:
    if settings.driver == "local" and job.machines:
        return str(machine_dir(settings.home, job.machines[0]) / "logs" / job.name)
    return f"logs/{job.name} of its machines' folders"
