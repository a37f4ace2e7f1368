"""``up`` and ``down``: the embedded control plane and its machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast import redact
from holdfast import settings as settings_module
from holdfast.cli.output import AsJson, progress, report
from holdfast.client import links
from holdfast.errors import SettingsError
from holdfast.settings import HOME_NAME

Home = Annotated[
    Path | None, typer.Option(help=f"Folder for all state (default: {HOME_NAME} in this directory).")
]


def up(
    machines: Annotated[
        int, typer.Option(min=0, max=10_000, help="Machines to have, standbys included.")
    ] = 6,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65533, help="Gateway's port; Prefect and S3 take the next two."),
    ] = None,
    home: Home = None,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="Stay until SIGTERM, then stop the services, not the machines."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the control plane and machines; what runs already is left alone."""
    from holdfast.deployments.local import control  # noqa: PLC0415  (the training image has no control plane)

    folder, aside = new_home(home), progress(as_json)
    settings = control.up(folder, machines, aside, port=port)
    known = settings_module.load(folder)
    gateway, page = redact.link(known.gateway), known.page
    aside(f"status page: {page} (log in with the secret file's content)")
    aside(links.prefect_ui(known))
    line = "next: `holdfast submit JOBFILE`, `holdfast status`, `holdfast down`"
    report(as_json, line, home=folder, gateway=gateway, page=page)
    if foreground:
        control.stay(settings)


def down(
    home: Home = None,
    keep_machines: Annotated[
        bool, typer.Option("--keep-machines", help="Stop the control plane alone: machines and jobs go on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the machines and the control plane; state stays for the next `holdfast up`."""
    folder = home.resolve() if home else settings_module.find_home()
    from holdfast.deployments.local import control  # noqa: PLC0415

    control.down(folder, progress(as_json), keep_machines=keep_machines)
    line = (
        "down; state is kept: `holdfast up` brings the services and their history back. Jobs that ran are stopped "
        "then: `holdfast resume JOB` goes on from the newest checkpoint in S3"
    )
    if keep_machines:
        line = "the control plane is down, machines go on: `holdfast up --machines 0` brings it back"
    report(as_json, line, home=folder)


def new_home(named: Path | None) -> Path:
    """Return where ``up`` keeps state: as named, else this project's, else a new one in the current directory."""
    if named is not None:
        return named.resolve()
    try:
        return settings_module.find_home()
    except SettingsError:
        return Path.cwd() / HOME_NAME
