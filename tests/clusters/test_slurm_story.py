"""The demo's story on a real Slurm cluster: three faults underneath a real job, and not a bit of it changes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from holdfast.models.alert import IncidentClass
from holdfast.models.machine import MachineState
from tests.clusters.slurm import Cluster
from tests.e2e.pace import Paced, digest
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STEPS = 150


def test_faults_on_a_slurm_cluster_change_no_bit_of_the_result(
    slurm_site: Site, slurm_cluster: Cluster, tmp_path: Path
) -> None:
    """A dead rank, a dead machine and a hang; another job on the same cluster sees nothing of it."""
    site = slurm_site
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
    assert machines[1] not in site.evicted()
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
