"""The demo's story on a real Slurm cluster: three faults underneath a real job, and not a bit of it changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from holdfast.deployments.local import control
from holdfast.models.alert import IncidentClass
from holdfast.models.machine import MachineState
from tests.certificates import AGENT_NAME, Authority
from tests.clusters.slurm import Cluster
from tests.e2e.pace import Paced, digest
from tests.e2e.site import POLICY, Site
from tests.e2e.waiting import free_ports, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CONTROL = Path(__file__).parents[2] / "deployments" / "slurm" / "control-plane.sbatch"
STEPS = 150


@pytest.fixture
def site(slurm_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The control plane as an operator submits it, on the node for services; six nodes are its machines.

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
        "HOLDFAST_MACHINES": str(len(slurm_cluster.nodes)),
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
            told = log.read_text() if log.exists() else "no log"
            with suppress(Exception):  # as much of it as is up
                told += f"\n{Site(home).evidence()}"
            raise AssertionError(f"{error}\n{told}") from None
        yield Site(home)
        slurm_cluster.ask("scancel", "--batch", "--signal=TERM", job)
        wait_for("it is down, with its machines", lambda: not slurm_cluster.ask("squeue", "-h", "-o", "%A"))
    finally:
        control.down(home, print)


def test_faults_on_a_slurm_cluster_change_no_bit_of_the_result(
    site: Site, slurm_cluster: Cluster, tmp_path: Path
) -> None:
    """A dead rank, a dead machine and a hang; another job on the same cluster sees nothing of it."""
    faulty, calm, paced = tmp_path / "faulty.pt", tmp_path / "calm.pt", Paced(tmp_path)
    # However long the other job takes to begin, and each recovery: the hang comes before its end.
    machines = site.submit("faulty", "--out", str(faulty), steps=STEPS, code_dir=paced.code).machines
    site.submit("calm", "--out", str(calm), steps=STEPS, code_dir=paced.code)
    assert set(machines) <= set(slurm_cluster.nodes)

    site.fault("kill-rank", machines[1])
    assert site.wait_recovered("faulty", 1).incident_class is IncidentClass.JOB_CRASH
    assert site.job("faulty").machines == machines

    slurm_cluster.kill_node(machines[0])
    died = site.wait_recovered("faulty", 2)
    assert (died.incident_class, died.machine) == (IncidentClass.MACHINE_FAULT, machines[0])
    assert {"DOWN", "DRAIN"} <= slurm_cluster.flags(machines[0])
    assert died.id in slurm_cluster.reason(machines[0])

    site.wait_more_steps("faulty", 10)
    stopped = psutil.Process(site.pids("faulty")[1])
    site.fault("hang-rank", machines[1])
    hung = site.wait_recovered("faulty", 3)
    assert hung.incident_class is IncidentClass.JOB_HANG
    assert machines[1] in site.evicted()
    assert not stopped.is_running()

    paced.hurry()
    for job in ("faulty", "calm"):
        site.wait_done(job)
    assert len(site.epochs("faulty")) == 4
    assert len(site.epochs("calm")) == 1
    assert digest(faulty) == digest(calm)

    # Repaired, the dead node comes back under its name, as another incarnation.
    before = site.ledger.machine(machines[0]).incarnation
    slurm_cluster.start_node(machines[0])
    site.http.post(f"/v1/machines/{machines[0]}/release").raise_for_status()
    wait_for(
        "the repaired node stands by",
        lambda: site.ledger.machine(machines[0]).state is MachineState.STANDBY,
    )
    assert site.ledger.machine(machines[0]).incarnation != before
