"""Network splits: the right machines are evicted, and no job runs twice."""

from __future__ import annotations

import pytest

from holdfast.drivers import processes
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.paths import machine_dir
from holdfast.policies.detect import silence
from tests.e2e.waiting import wait_for
from tests.network.conftest import Cluster
from tests.network.lab import CONTROL
from tests.network.steps import overlaps

STEPS_AFTER = 40
"""Steps that show that a job goes on: more than those that it noted and did not report yet."""
THOROUGH = pytest.mark.thorough


def only_recovery(cluster: Cluster, name: str) -> IncidentClass:
    """Wait until the job's only incident is recovered and new steps are made; its class."""
    incident = cluster.site.wait_recovered(name)
    newest = cluster.step(name)
    wait_for(f"{name} goes on", lambda: cluster.step(name) >= newest + STEPS_AFTER)
    assert len(cluster.site.ledger.incidents(job=name)) == 1, cluster.site.describe(name)
    assert overlaps(cluster.generations(name)) == []
    assert len(cluster.generations(name)) == 2
    return incident.incident_class


def goes_on_untouched(cluster: Cluster, name: str, steps: int) -> None:
    """Wait for so many steps more; then nothing was done to the job."""
    newest = cluster.step(name)
    wait_for(f"{name} at step {newest + steps}", lambda: cluster.step(name) >= newest + steps, 120)
    assert cluster.site.ledger.incidents(job=name) == [], cluster.site.describe(name)
    assert len(cluster.generations(name)) == 1
    assert cluster.site.evicted() == set()


@THOROUGH
def test_a_gateway_that_is_cut_off_accuses_no_machine(cluster: Cluster) -> None:
    """No machine reaches it for more than two leases: training goes on, and no machine is acted on."""
    cluster.submit("unheard", 3)
    before = cluster.site.counts()

    cluster.wires.unplug(CONTROL)
    wait_for("the gateway notices", lambda: cluster.gateway_logged("no machine answers"))
    two_leases_later = cluster.last_word("unheard") + 2 * silence.MIN_LEASE_S
    wait_for("training goes on", lambda: cluster.last_word("unheard") > two_leases_later)
    cluster.wires.plug(CONTROL)

    wait_for("it hears again", lambda: cluster.gateway_logged("machines answer again"))
    cluster.site.wait_more_steps("unheard", STEPS_AFTER)
    after = cluster.site.counts()
    assert after == before


@THOROUGH
def test_cut_off_machines_end_their_ranks_before_others_take_over(cluster: Cluster) -> None:
    """One machine loses the gateway but not its peers, one loses its cable: each is evicted, alone, and steps no more.

    The second is all of its job: nothing but its own agent keeps its rank from going on.
    """
    site, wires = cluster.site, cluster.wires
    kept, cut = cluster.submit("pair", 2, spare=3)
    (lonely,) = cluster.submit("alone", 1, spare=2)
    before = {name: machine_dir(site.home, name) for name in (cut, lonely)}
    # Without it nothing would be left of a job of one machine, and a person decides about that.
    wait_for("a checkpoint in S3", lambda: site.ledger.checkpoints("alone"))

    wires.cut(cut, CONTROL)
    wires.unplug(lonely)

    assert only_recovery(cluster, "pair") is IncidentClass.MACHINE_FAULT
    assert only_recovery(cluster, "alone") is IncidentClass.MACHINE_FAULT
    assert site.evicted() == {cut, lonely}
    assert kept in site.job("pair").machines
    assert cluster.logged(cut, "but answers ")
    assert cluster.logged(lonely, "neither the gateway nor any of ")
    # No order to end could reach these agents; they live until they learn that they were given up.
    assert all(processes.find_agent(folder) for folder in before.values())
    wires.heal(cut, CONTROL)
    wires.plug(lonely)
    wait_for("they leave", lambda: not any(processes.find_all(folder) for folder in before.values()))
    assert overlaps(cluster.generations("pair")) == overlaps(cluster.generations("alone")) == []


@THOROUGH
@pytest.mark.parametrize("slot", [0, 2])
def test_a_machine_cut_from_its_peers_is_found(cluster: Cluster, slot: int) -> None:
    """The job hangs, all agents answer: transfers between neighbours name the machine, also where they all meet."""
    name = f"peerless-{slot}"
    machines = cluster.submit(name, 3, spare=2)
    cut = machines[slot]

    cluster.wires.cut_from_all(cut, but=[CONTROL])

    only_recovery(cluster, name)
    assert cluster.site.evicted() == {cut}
    (incident,) = cluster.site.ledger.incidents(job=name)
    assert cut in incident.summary, cluster.site.describe(name)


@THOROUGH
def test_a_bad_link_costs_no_machine(cluster: Cluster) -> None:
    """One of eight packets of a machine is lost, then its link is slow: the job is slower, and goes on."""
    _, bad, _ = cluster.submit("lossy", 3)
    cluster.wires.lose(bad, one_in=8)
    goes_on_untouched(cluster, "lossy", 60)
    cluster.wires.heal_all(bad)
    cluster.wires.slow(bad, 500)
    goes_on_untouched(cluster, "lossy", 60)


@THOROUGH
def test_a_link_that_flaps_shortly_costs_no_machine(cluster: Cluster) -> None:
    """Each loss of contact is shorter than a lease."""
    _, bad, _ = cluster.submit("flaps", 3)
    with cluster.wires.flapping(bad, 0.5, 1.5) as times:
        wait_for("it flapped", lambda: times() >= 6)
        goes_on_untouched(cluster, "flaps", 20)


@THOROUGH
def test_a_link_that_flaps_long_costs_its_machine_once(cluster: Cluster) -> None:
    """Each loss of contact is longer than a lease: the machine goes, does not come back, and no other goes."""
    _, bad, _ = cluster.submit("flaps-long", 3, spare=2)
    with cluster.wires.flapping(bad, 8, 2) as times:
        only_recovery(cluster, "flaps-long")
        so_far = times()
        wait_for("it flaps on", lambda: times() >= so_far + 2)
    assert cluster.site.evicted() == {bad}
    assert len(cluster.generations("flaps-long")) == 2


@THOROUGH
def test_contact_lost_for_most_of_a_lease_costs_a_restart(cluster: Cluster) -> None:
    """The machine ended its ranks, and comes back when it is about to be given up: the job starts again, once."""
    (lonely,) = cluster.submit("nearly", 1, spare=1)
    cluster.wires.unplug(lonely)
    wait_for("its ranks end", lambda: cluster.logged(lonely, "is cut off, its ranks end"))
    cluster.wires.plug(lonely)
    incident_class = only_recovery(cluster, "nearly")
    assert incident_class is (
        IncidentClass.MACHINE_FAULT if cluster.site.evicted() else IncidentClass.NETWORK_FAULT
    )
    assert cluster.site.evicted() <= {lonely}


@THOROUGH
def test_half_the_fleet_cut_off_waits_for_a_person(cluster: Cluster) -> None:
    """More than may be evicted at once are silent: none is evicted, and nothing of the job runs twice."""
    first, second, _ = cluster.submit("half", 3)
    for machine in (first, second):
        cluster.wires.cut_from_all(machine, but=[first, second])

    def asked() -> bool:
        incidents = cluster.site.ledger.incidents(job="half")
        return any(each.state is IncidentState.NEEDS_HUMAN for each in incidents)

    wait_for("a person is asked", asked)
    assert cluster.site.evicted() == set()
    assert overlaps(cluster.generations("half")) == []
