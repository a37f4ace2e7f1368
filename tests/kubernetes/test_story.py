"""The demo's story on Kubernetes: a rank dies, a node dies, a rank hangs; the weights are those of a calm run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.demo import weights
from holdfast.deployments.gateway.runs import offline
from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Object
from holdfast.models.alert import Incident, IncidentClass
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.site import on_kubernetes

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(900)]

NAMESPACE = "holdfast-story"
MACHINES = 5
STEPS = 200
CALM_STEPS = 8
LONG_S = 240.0
"""For a whole run of the job: a step takes what the host's other work leaves."""


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    """A control plane of Holdfast whose machines are pods."""
    with on_kubernetes(cluster, NAMESPACE, tmp_path / ".holdfast", machines=3, supplied=MACHINES) as site:
        yield site


def recovered(site: Site, name: str, number: int, expected: IncidentClass) -> Incident:
    """The job's ``number``-th incident, over, at its first attempt; or at the next, if Prefect was too busy for it."""
    incident = site.wait_recovered(name, number)
    assert incident.incident_class is expected, site.describe(name)
    assert incident.attempt == 1 or offline.is_offline(incident.flow_run_id or ""), site.describe(name)
    assert len(site.ledger.incidents(job=name)) == number, site.describe(name)
    site.wait_more_steps(name, CALM_STEPS)
    return incident


def node(cluster: Cluster, name: str) -> Object:
    """A node as the API server has it."""
    return cluster.admin.get(f"/api/v1/nodes/{name}")


def _is_back(found: Object) -> bool:
    """Whether a node reports again, and only its cordon keeps pods off it."""
    away = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    return bodies.is_ready(found) and not away & {each["key"] for each in found["spec"].get("taints") or []}


@pytest.mark.thorough
def test_dead_rank_dead_machine_and_hang_leave_the_weights_of_a_calm_run(
    site: Site, cluster: Cluster, tmp_path: Path
) -> None:
    """Four faults underneath, four recoveries by the right playbook, every evicted node cordoned, equal weights."""
    out = tmp_path / "weights.pt"
    calm = tmp_path / "calm.pt"
    site.submit("story", "--out", str(out), steps=STEPS, machines=3, spare=2, first=CALM_STEPS)
    before = site.job("story").machines

    os.kill(site.pids("story")[1], signal.SIGKILL)
    recovered(site, "story", 1, IncidentClass.JOB_CRASH)
    assert site.job("story").machines == before

    dead_node = cluster.kubelets.node_of(before[0])
    cluster.kubelets.power_off(dead_node)
    recovered(site, "story", 2, IncidentClass.MACHINE_FAULT)
    after = site.job("story").machines
    assert after[0] not in before
    assert after[1:] == before[1:]
    assert node(cluster, dead_node)["spec"]["unschedulable"] is True

    # A machine that stands out stays at the first time, and goes at the second.
    hung_node = cluster.kubelets.node_of(after[2])
    os.kill(site.pids("story")[2], signal.SIGSTOP)
    recovered(site, "story", 3, IncidentClass.JOB_HANG)
    assert site.job("story").machines == after
    os.kill(site.pids("story")[2], signal.SIGSTOP)
    recovered(site, "story", 4, IncidentClass.JOB_HANG)
    assert after[2] not in site.job("story").machines
    assert site.evicted() == {before[0], after[2]}
    labels = node(cluster, hung_node)["metadata"]["labels"]
    assert labels["holdfast.dev/evicted"] in ("job", "cluster")
    assert cluster.kubelets.container(after[2]) is None

    served = site.job("story").machines
    site.wait_done("story", LONG_S)
    # A repaired machine outranks a standby where nodes are short: all have come back before any is released.
    wait_for("the job's machines stand by", lambda: set(served) <= set(site.standbys()))
    # Repaired: the dead node comes back, both machines are released and stand by again.
    cluster.kubelets.power_on(dead_node)
    wait_for("the repaired node takes pods", lambda: _is_back(node(cluster, dead_node)))
    site.submit("calm", "--out", str(calm), steps=STEPS, machines=3, spare=0)
    site.wait_done("calm", LONG_S)
    assert site.ledger.incidents(job="calm") == []
    compared = weights.compare(out, calm)
    assert compared.tensors > 10
    assert compared.differing == ()
    wait_for(
        "the repaired node is given back",
        lambda: not node(cluster, dead_node)["spec"].get("unschedulable"),
    )
    wait_for(
        "the node of the hung rank is given back",
        lambda: "holdfast.dev/evicted" not in node(cluster, hung_node)["metadata"]["labels"],
    )
    assert cluster.kubelets.errors == []
