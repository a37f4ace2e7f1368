"""An operator's setup with Prefect's own commands: a pool for one of its own workers, and all deployments into it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.deployments.worker.environment import client_environment
from tests.e2e.site import Site

ROOT = Path(__file__).resolve().parents[2]
_POOL = "    name: holdfast\n"


def prefect(site: Site, folder: Path, *words: str) -> None:
    """A command, run in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *words],
        cwd=folder,
        env=os.environ | client_environment(site.settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def deploy_into(site: Site, folder: Path, pool: str, kind: str, *options: str) -> None:
    """Make the work pool, and deploy all into it by a copy of ``prefect.yaml`` in ``folder``."""
    text = (ROOT / "prefect.yaml").read_text()
    assert _POOL in text
    (folder / "prefect.yaml").write_text(text.replace(_POOL, f"    name: {pool}\n"))
    prefect(site, folder, "work-pool", "create", pool, "--type", kind, *options)
    prefect(site, folder, "deploy", "--all")
