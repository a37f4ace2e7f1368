"""Real clusters for tests; one of each for the whole run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.deployments.local import control
from tests.certificates import AGENT_NAME, Authority
from tests.clusters import slurm
from tests.e2e.site import POLICY, Site
from tests.e2e.waiting import free_ports, wait_for

NODES = 6
CONTROL = Path(__file__).parents[2] / "deployments" / "slurm" / "control-plane.sbatch"


@pytest.fixture(scope="package")
def slurm_cluster() -> Iterator[slurm.Cluster]:
    """Six nodes. Short path: munge's socket has to fit into 108 bytes."""
    if absent := slurm.missing():
        pytest.skip(absent)
    root = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
    cluster = slurm.Cluster(root, NODES)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def slurm_site(
    slurm_cluster: slurm.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """The control plane as an operator submits it, on the node for services; five of six nodes are its machines.

    Gateway, agents and playbooks speak TLS, as the batch script's comments say.
    """
    home, log = tmp_path / ".holdfast", tmp_path / "control.log"
    home.mkdir()
    (home / "policy.yaml").write_text(POLICY)
    pki = Authority(tmp_path / "pki")
    cert, key = pki.certify("site", "127.0.0.1", AGENT_NAME)
    chosen = {
        **slurm_cluster.env,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), slurm_cluster.env["PATH"]]),
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_HOST": "127.0.0.1",
        "HOLDFAST_PORT": str(free_ports()),
        "HOLDFAST_POLICY_FILE": str(home / "policy.yaml"),
        "HOLDFAST_MACHINES": str(NODES - 1),  # two jobs of two, and one that stands by
        "HOLDFAST_SLURM_OPTIONS": "--partition=train",
        "HOLDFAST_SLURM_START_S": "60",
        "HOLDFAST_TLS_CERT": str(cert),
        "HOLDFAST_TLS_KEY": str(key),
        "HOLDFAST_TLS_CA": str(pki.ca),
        "HOLDFAST_TLS_AGENT_NAME": AGENT_NAME,
    }
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    submit = ("sbatch", "--parsable", "--partition=services", f"--output={log}", f"--chdir={tmp_path}")
    try:
        job = subprocess.run(
            [*submit, str(CONTROL)], check=True, capture_output=True, text=True
        ).stdout.strip()
        try:
            wait_for("the control plane is up", lambda: log.exists() and "\nup: " in log.read_text(), 400)
        except AssertionError as error:
            log_text = log.read_text() if log.exists() else "no log"
            with suppress(Exception):  # as much of it as is up
                log_text += f"\n{Site(home).evidence()}"
            raise AssertionError(f"{error}\n{log_text}") from None
        yield Site(home)
        slurm_cluster.ask("scancel", "--batch", "--signal=TERM", job)
        wait_for("it is down, with its machines", lambda: not slurm_cluster.ask("squeue", "-h", "-o", "%A"))
    finally:
        control.down(home, print)
