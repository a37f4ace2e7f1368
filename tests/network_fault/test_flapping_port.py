"""A cable that loses contact again and again under a real job: its machine is found by the port, and replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.models.alert import AlertKind, IncidentClass
from holdfast.storage.ledger.alerts import RecordedAlert
from tests.e2e.waiting import wait_for
from tests.network import driver, lab
from tests.network.conftest import POLICY, Cluster, running
from tests.network.lab import Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(800),
]
PORTS = """
detect:
  intervals: {network_s: 3}
  network: {interfaces: [eth0]}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four hosts whose agents see their own ports."""
    if why := lab.missing():
        pytest.skip(why)
    built = Lab([f"m{number}" for number in range(4)])
    try:
        with running(built.open(), tmp_path, POLICY + PORTS, **{driver.PORTS: "1"}) as made:
            yield made
    finally:
        built.close()


def test_a_port_that_flaps_costs_its_machine(cluster: Cluster) -> None:
    """Too shortly to lose contact: at its second alert the machine goes, and no other."""
    site = cluster.site
    kept, bad, other = cluster.submit("port", 3, spare=1)
    site.wait_more_steps("port", 20)
    assert site.ledger.alerts_of(bad) == [], site.describe("port")
    with cluster.wires.flapping(bad, 0.3, 2.0) as times:
        incident = site.wait_recovered("port")
    assert times() >= 2
    assert incident.incident_class is IncidentClass.NETWORK_FAULT, site.describe("port")
    assert site.evicted() == {bad}, site.describe("port")
    assert {kept, other} < {*site.job("port").machines}
    assert AlertKind.NIC_FLAPPING in {alert.kind for alert in site.ledger.alerts_of(bad)}
    # A rank that is stopped a moment later than its peer reports that it lost it.
    pause = site.ledger.actions(incident.id, "pause")[0].begun_at
    for machine in (kept, other):
        own = [each for each in site.ledger.alerts_of(machine) if not _is_cascading(each, since=pause)]
        assert own == [], site.describe("port")
    wait_for("it goes on", lambda: len(cluster.generations("port")) == 2)
    site.wait_more_steps("port")


def _is_cascading(alert: RecordedAlert, since: float) -> bool:
    """Whether a rank reports no more than the loss of a peer, from this time on."""
    return alert.kind is AlertKind.RANK_LOG and bool(alert.evidence["cascade"]) and alert.at >= since
