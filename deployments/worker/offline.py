"""``python -m holdfast.deployments.worker.offline INCIDENT ATTEMPT``: a playbook while Prefect stays away.

Recovery must not wait for its own tools: the steps run here, in this process, as plain functions. A playbook of another
package may use more of Prefect than that; it runs against a private server that lives as long as the run, which takes
seconds of a processor to start. Actions are in the ledger as always; only the run is not in the UI.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from holdfast.deployments.worker import manifest
from holdfast.deployments.worker.environment import quiet_environment
from holdfast.errors import HoldfastError, SettingsError
from holdfast.models.alert import Incident
from holdfast.paths import run_dir
from holdfast.settings import Settings, find_home, load
from holdfast.shown import log_plainly
from holdfast.storage.ledger import Ledger

OWN = "holdfast.flows."
"""Modules whose playbooks use no more of Prefect than what they do without it."""


def private_environment(settings: Settings, name: str) -> dict[str, str]:
    """Return the environment of a run with a server of its own, under ``HOME/run/offline``."""
    folder = run_dir(settings.home) / "offline" / name
    return quiet_environment(settings) | {
        "PREFECT_HOME": str(folder),
        "PREFECT_PROFILES_PATH": str(folder / "profiles.toml"),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "240",
    }


def run(settings: Settings, incident: Incident, attempt: int) -> None:
    """Run the playbook of ``incident`` to its end; an error of the playbook is raised."""
    entrypoint = _entrypoint(incident)
    # Prefect reads its environment when it is imported: nothing above imports it.
    os.environ.pop("PREFECT_API_URL", None)
    if entrypoint.startswith(OWN):
        _run_plainly(settings, entrypoint, incident, attempt)
    else:
        _run_with_server(settings, entrypoint, incident, attempt)


def _run_plainly(settings: Settings, entrypoint: str, incident: Incident, attempt: int) -> None:
    os.environ.update(quiet_environment(settings))
    # The run's name in the ledger, for those who find the job's lease taken.
    os.environ["PREFECT__RUNTIME__FLOW_RUN__ID"] = f"offline {incident.id}-{attempt}, process {os.getpid()}"
    flow = _load(entrypoint)
    from holdfast.tasks.plain import without_prefect  # noqa: PLC0415  (imports Prefect)
    from holdfast.tasks.recovery_context import Request  # noqa: PLC0415

    log_plainly(force=True)
    with without_prefect(logging.getLogger("holdfast.playbook")):
        asyncio.run(flow.fn(Request(id=incident.id, attempt=attempt)))


def _run_with_server(settings: Settings, entrypoint: str, incident: Incident, attempt: int) -> None:
    name = f"{incident.id}-{attempt}"
    # SQLite makes the database, not the folder that it lies in.
    (run_dir(settings.home) / "offline" / name).mkdir(parents=True, exist_ok=True)
    os.environ.update(private_environment(settings, name))
    try:
        asyncio.run(_load(entrypoint)({"id": incident.id, "attempt": attempt}))
    finally:
        shutil.rmtree(run_dir(settings.home) / "offline" / name, ignore_errors=True)


def _entrypoint(incident: Incident) -> str:
    wanted = incident.incident_class.value.replace("_", "-")
    for deployment in manifest.all_deployments():
        if deployment.name == wanted:
            return deployment.entrypoint
    raise SettingsError(
        f"neither prefect.yaml nor an installed package has the deployment {wanted!r}, which incident "
        f"{incident.id} needs"
    )


def _load(entrypoint: str) -> Any:
    module, _, flow = entrypoint.partition(":")
    return getattr(importlib.import_module(module), flow)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.deployments.worker.offline", description=__doc__
    )
    parser.add_argument("incident", help="id of the incident")
    parser.add_argument("attempt", type=int)
    parser.add_argument("--home", type=Path, default=None, help="the project's .holdfast folder")
    options = parser.parse_args()
    try:
        settings = load((options.home or find_home()).resolve())
        ledger = Ledger(settings.database)
        incident = ledger.incident(options.incident)
        ledger.close()
        run(settings, incident, options.attempt)
    except HoldfastError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
