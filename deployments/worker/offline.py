"""``python -m holdfast.deployments.worker.offline INCIDENT ATTEMPT``: a playbook while Prefect stays away.

Recovery must not wait for its own tools: the playbook runs here, in this process, against a private Prefect
server that lives as long as the run. Its actions are in the ledger as always; only the run is not in the UI.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
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
from holdfast.storage.ledger import Ledger


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
    name = f"{incident.id}-{attempt}"
    # SQLite makes the database, not the folder that it lies in.
    (run_dir(settings.home) / "offline" / name).mkdir(parents=True, exist_ok=True)
    # Prefect reads its environment when it is imported: nothing above imports it.
    os.environ.update(private_environment(settings, name))
    os.environ.pop("PREFECT_API_URL", None)
    try:
        asyncio.run(_playbook(incident)({"id": incident.id, "attempt": attempt}))
    finally:
        shutil.rmtree(run_dir(settings.home) / "offline" / name, ignore_errors=True)


def _playbook(incident: Incident) -> Any:
    wanted = incident.incident_class.value.replace("_", "-")
    for deployment in manifest.all_deployments():
        if deployment.name == wanted:
            module, _, flow = deployment.entrypoint.partition(":")
            return getattr(importlib.import_module(module), flow)
    raise SettingsError(
        f"neither prefect.yaml nor an installed package has the deployment {wanted!r}, which incident "
        f"{incident.id} needs"
    )


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
