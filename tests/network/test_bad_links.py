"""Whole jobs whose steps become slow because of the network: a bad NIC is named; of a bad switch no machine is.

There is no report: the job's own pace opens the incident, its stacks agree with one another, and the transfers
between neighbours decide.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.models.alert import Incident, IncidentClass
from tests.network.conftest import POLICY, SCRIPTS, Cluster, running
from tests.network.lab import Lab

pytestmark = pytest.mark.thorough
SLOW_KBIT = 1500
# Hosts of a lab share this host's processors, so their pace is judged however busy these are, and only that of links,
# which are a thousand times slower than anything else makes them.
SOON = """\
detect:
  throughput: {baseline: 32, recent: 8, slower: 1.5, lasting_s: 5, every_s: 1}
  straggler: {slower: 1000}
  network: {switches: {leaf-1: [m0, m1], leaf-2: [m2, m3]}}
hang: {min_window_s: 120}
"""
WAIT_S = 300.0


@pytest.fixture(scope="module")
def slow_cluster(wires: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Jobs that are slow for seconds are worked on; slow links have time to answer."""
    policy = POLICY.replace(
        "check_timeout_s: 8", "check_timeout_s: 60, slow_interval_s: 0.2, pace: {busy: 1}"
    )
    policy = policy.replace(
        "offender: 1000", "offender: 1000, classes: {fail_slow: {tiers: [inspect, all_gather]}}"
    )
    with running(wires, tmp_path_factory.mktemp("bad-links"), policy + SOON) as cluster:
        yield cluster


@pytest.fixture
def cluster(slow_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster at rest, its links healed."""
    yield slow_cluster
    for host in slow_cluster.wires.hosts:
        slow_cluster.wires.heal_all(host)
    slow_cluster.site.settle()


def submit(cluster: Cluster, name: str) -> tuple[str, ...]:
    """Four machines, and one that stands by; returns when the job knows its own pace."""
    job = cluster.site.submit(name, machines=4, spare=1, code_dir=SCRIPTS, script="train_wide.py")
    cluster.site.wait_step(name, 60, WAIT_S)
    return job.machines


def recovered(cluster: Cluster, name: str) -> Incident:
    incident = cluster.site.wait_recovered(name, timeout_s=WAIT_S)
    assert incident.incident_class is IncidentClass.FAIL_SLOW, cluster.site.describe(name)
    return incident


def test_a_bad_nic_is_named_by_its_neighbours(cluster: Cluster) -> None:
    """Its transfers are slow with both, theirs with others are not: it is replaced, and the job has its pace again."""
    machines = submit(cluster, "bad-nic")
    bad = machines[2]
    cluster.wires.slow(bad, SLOW_KBIT)
    recovered(cluster, "bad-nic")
    assert cluster.site.evicted() == {bad}, cluster.site.describe("bad-nic")
    assert bad not in cluster.site.job("bad-nic").machines


def test_a_bad_switch_costs_none_of_its_machines(cluster: Cluster) -> None:
    """Both machines behind it are slow with all others: the switch is suspected, and both stay."""
    machines = submit(cluster, "bad-switch")
    leaves = {"leaf-1": {"m0", "m1"}, "leaf-2": {"m2", "m3"}}
    switch, behind = next((name, hosts) for name, hosts in leaves.items() if hosts <= {*machines})
    for name in behind:
        cluster.wires.slow(name, SLOW_KBIT)
    incident = recovered(cluster, "bad-switch")
    state = cluster.site.describe("bad-switch")
    assert f"switch {switch} suspected, no machine" in incident.summary, state
    assert cluster.site.evicted() == set(), state
    assert cluster.site.job("bad-switch").machines == machines
