"""``pause``, ``resume``, ``stop``, ``update``, ``scale`` and ``move``: commands to one job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast import names
from holdfast.cli import context, roles
from holdfast.cli.arguments import JobName, finite
from holdfast.cli.output import AsJson, report
from holdfast.client import job_code
from holdfast.models.job import JobState
from holdfast.policies.counted import counted


def pause(job: JobName, as_json: AsJson = False) -> None:
    """Hold a job's ranks at the next step boundary; they stay alive."""
    _command(as_json, job, "pause", "paused at a step boundary. `holdfast resume` lets it go on.")


def resume(
    job: JobName,
    step: Annotated[
        int | None, typer.Option(min=1, help="From this saved step, also an older or a suspect one.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="From zero: what was saved is not restored any more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a job go on that is paused, was stopped, or waits for a person."""
    if step is not None and from_scratch:
        raise typer.BadParameter("--step and --from-scratch exclude each other: choose one")
    chosen = {"step": step, "from_scratch": from_scratch} if step is not None or from_scratch else None
    _command(as_json, job, "resume", "goes on.", chosen)


def stop(job: JobName, as_json: AsJson = False) -> None:
    """Stop a job; its checkpoints in S3 stay."""
    with context.gateway() as gateway:
        was_done = gateway.command(job, "stop")["state"] == JobState.DONE
        saves = bool((gateway.history(job).get("status") or {}).get("step"))
    kept = f"Its checkpoints stay: `holdfast checkpoints ls {job}`." if saves else ""
    if was_done:
        outcome = f"was done already; nothing of it ran. {kept}"
    elif saves:
        goes_on = f"`holdfast resume {job}` goes on from the newest; submitted again it starts from zero."
        outcome = f"stopped. {kept} {goes_on}"
    else:
        outcome = (
            "stopped. It reported no step to Holdfast, which has no checkpoint of it: "
            f"`holdfast resume {job}` starts its script again."
        )
    report(as_json, f"{job}: {outcome.rstrip()}", job=job, command="stop")


def update(
    job: JobName,
    code_dir: Annotated[
        Path | None, typer.Option("--code", help="Folder with the new code (default: the job file's).")
    ] = None,
    lazy: Annotated[bool, typer.Option(help="Wait for the next restart instead of making one.")] = False,
    note: Annotated[str, typer.Option(help="Note on what changes, kept with the code version.")] = "",
    as_json: AsJson = False,
) -> None:
    """Ship a code change; it is kept as a new code version and rolled back if it breaks the job."""
    settings = context.settings()
    with context.gateway() as gateway:
        spec = gateway.job(job).spec
        folder = job_code.folder(str(code_dir or spec.code), Path.cwd())
        job_code.check_scripts(folder, spec)
        version = job_code.store(settings, job, folder)
        outcome = gateway.update(job, version, lazy=lazy, note=note)
    line = f"{job}: code version {version} is stored: {outcome}."
    report(as_json, line, job=job, code_version=version, outcome=outcome)


def scale(
    job: JobName,
    number: Annotated[
        int,
        typer.Argument(min=0, metavar="N", help="Machines, or replicas of the role; 0: none (state in S3)."),
    ],
    role: Annotated[str, typer.Option(help="Role whose replicas are meant (default: the machines).")] = "",
    note: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    as_json: AsJson = False,
) -> None:
    """Change a job's number of machines, within the sizes of its job file, or to zero and back; or that of a role."""
    if role:
        names.require(names.ROLE, role, "--role: ")
        with context.gateway() as gateway:
            gateway.scale_role(job, role, number, note)
            warnings = roles.crowded(gateway.history(job).get("status") or {}, role)
        replicas = counted(number, "replica", "replicas")
        line = "\n".join(
            [f"{job}: {replicas} of {role}; the ranks are left alone.", *(f"{each}." for each in warnings)]
        )
        report(as_json, line, job=job, role=role, replicas=number, warnings=warnings)
        return
    with context.gateway() as gateway:
        outcome = gateway.scale(job, number, note)
    machines = counted(number, "machine", "machines")
    report(as_json, f"{job}: {machines}: {outcome}.", job=job, machines=number, outcome=outcome)


def move(  # noqa: PLR0917
    job: JobName,
    machine: Annotated[str, typer.Argument(help="Machine that the job is to leave; it may still work.")],
    to: Annotated[str, typer.Option(help="Standby that takes over (default: the policy's choice).")] = "",
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    within: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds until the machine is gone (default: it stays).", callback=finite
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move a job off a machine at a step boundary: a standby is brought up beside the training first."""
    with context.gateway() as gateway:
        outcome = gateway.move(job, machine, to=to, reason=reason, deadline_s=within)
    report(as_json, f"{job}: leaves {machine}: {outcome}.", job=job, machine=machine, outcome=outcome)


def _command(as_json: bool, job: str, verb: str, outcome: str, body: object = None) -> None:
    with context.gateway() as gateway:
        gateway.command(job, verb, body)
    report(as_json, f"{job}: {outcome}", job=job, command=verb)
