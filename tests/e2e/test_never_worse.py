"""Parts of the control plane are away: training goes on, and recovery goes on with what is left."""

from __future__ import annotations

import os
import signal
import sqlite3
import time

import pytest

from holdfast.deployments.local.services import embedded
from holdfast.drivers import processes
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.paths import machine_dir
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

LOCKED_S = 15.0
"""Longer than a machine's lease, after which its ranks would end by themselves."""


def test_training_goes_on_without_the_control_plane(site: Site, name: str) -> None:
    """Gateway, worker and Prefect die: no step is lost; when they are back they find everything in order."""
    site.submit(name)
    pids = site.pids(name)
    with site.unsupervised():
        site.kill("gateway", "worker", "prefect")
        assert_dead(site, "gateway", "worker", "prefect")
        site.wait_more_steps(name, 30)
        assert site.pids(name) == pids
    # Back again, the gateway hears of all the steps, and takes its own absence for no one's fault.
    now = site.step(name)
    wait_for("the gateway knows the steps", lambda: site.ledger.max_step(name) >= now)
    site.wait_more_steps(name, 10)
    assert site.pids(name) == pids
    assert site.incident(name) is None
    assert [epoch.epoch for epoch in site.epochs(name)] == [1]


def test_a_ledger_that_is_locked_for_a_while_ends_no_rank(site: Site, name: str) -> None:
    """Another program writes to the database for longer than machines wait for the gateway."""
    site.submit(name)
    pids, before = site.pids(name), site.step(name)
    other = sqlite3.connect(site.home / "ledger.db", isolation_level=None, timeout=30)
    try:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED_S)
        # The agents are asked: their answers are in no ledger.
        site.wait_step(name, before + 1)
        other.execute("ROLLBACK")
    finally:
        other.close()
    now = site.step(name)
    wait_for("the gateway knows the steps", lambda: site.ledger.max_step(name) >= now)
    site.wait_more_steps(name, 10)
    assert site.pids(name) == pids
    assert site.incident(name) is None
    assert [epoch.epoch for epoch in site.epochs(name)] == [1]


@pytest.mark.thorough
def test_recovery_goes_on_without_prefect(site: Site, name: str) -> None:
    """Prefect's server is dead when a rank dies: the playbook runs in a process of its own."""
    before = site.submit(name).machines
    with site.unsupervised():
        site.kill("prefect")
        assert_dead(site, "prefect")
        site.fault("kill-rank", before[1])
        incident = site.wait_recovered(name)
        assert (incident.flow_run_id or "").startswith("offline:")
        assert incident.incident_class is IncidentClass.JOB_CRASH
        assert site.done(incident)["start"] == 1
        assert [epoch.epoch for epoch in site.epochs(name)] == [1, 2]
        assert site.job(name).machines == before
    # With Prefect back the next incident is an ordinary run again.
    site.wait_more_steps(name, 10)
    site.fault("kill-rank", before[0])
    again = site.wait_recovered(name, 2)
    wait_for("its run ends", lambda: site.flow_run(again)["state"]["name"] == "Recovered")


@pytest.mark.thorough
def test_recovery_goes_on_without_s3(site: Site, name: str) -> None:
    """S3 is dead: training saves to memory and peer, and a restart finds its last step there."""
    before = site.submit(name, s3_every=5, every_step=True).machines
    with site.unsupervised():
        site.kill("s3")
        assert_dead(site, "s3")
        site.wait_more_steps(name, 20)
        site.fault("kill-rank", before[1])
        incident = site.wait_recovered(name)
        assert incident.incident_class is IncidentClass.JOB_CRASH
        assert site.epochs(name)[1].start_step >= (site.epochs(name)[0].last_step or 0) - 1
        site.wait_more_steps(name)
    # Checkpoints reach S3 again.
    last = max((each.step for each in site.ledger.checkpoints(name)), default=0)
    wait_for(
        "a newer checkpoint in S3", lambda: any(each.step > last for each in site.ledger.checkpoints(name))
    )


@pytest.mark.thorough
def test_machine_that_joined_without_s3_takes_part(site: Site, name: str) -> None:
    """S3 hangs, and the only standby was made since: it gets the job's code from the other machines."""
    before = site.submit(name).machines
    old = {machine.name for machine in site.ledger.machines()}
    s3 = site.service("s3")
    s3.suspend()
    try:
        for machine in site.standbys():
            site.http.post(f"/v1/machines/{machine}/evict", json={}).raise_for_status()
        site.fault("kill-rank", before[1])  # a recovery ends with replenishing the pool
        site.wait_recovered(name)
        wait_for("a new standby", site.standbys)
        site.fault("kill-machine", before[0])
        site.wait_recovered(name, 2)
        site.wait_more_steps(name)
        assert not set(site.job(name).machines) <= old
    finally:
        s3.resume()


@pytest.mark.thorough
def test_dead_agent_costs_its_machine(site: Site, name: str) -> None:
    """Only the agent is killed: its ranks die with it, and the machine is replaced."""
    before = site.submit(name).machines
    agent = processes.find_agent(machine_dir(site.home, before[1]))
    assert agent is not None
    agent.kill()
    incident = site.wait_recovered(name)
    assert incident.incident_class is IncidentClass.MACHINE_FAULT, site.describe(name)
    assert incident.machine == before[1]
    assert site.evicted() == {before[1]}
    assert site.job(name).machines[0] == before[0]
    assert [epoch.epoch for epoch in site.epochs(name)] == [1, 2]
    assert site.job(name).state is JobState.RUNNING


@pytest.mark.thorough
def test_a_hang_that_is_over_before_the_worker_is_back_changes_nothing(site: Site, name: str) -> None:
    """Ranks of a job that trains again wait for one another at any moment: their stacks accuse no machine."""
    machines = site.submit(name).machines
    # A hang is judged by the pace that the job had.
    site.wait_more_steps(name, 30)
    pids = site.pids(name)
    with site.unsupervised():
        site.kill("worker")
        assert_dead(site, "worker")
        os.kill(pids[1], signal.SIGSTOP)
        wait_for("the hang is reported", lambda: site.incident(name))
        os.kill(pids[1], signal.SIGCONT)
        site.wait_more_steps(name)
    wait_for("the incident is closed", lambda: _is_dismissed(site, name))
    site.wait_more_steps(name)
    assert site.pids(name) == pids
    assert site.job(name).machines == machines
    assert [epoch.epoch for epoch in site.epochs(name)] == [1]
    incident = site.incident(name)
    assert incident is not None
    assert "the hang is over" in incident.summary, site.describe(name)


def _is_dismissed(site: Site, name: str) -> bool:
    incident = site.incident(name)
    assert incident is not None
    assert incident.state in (IncidentState.OPEN, IncidentState.DISMISSED), site.describe(name)
    return incident.state is IncidentState.DISMISSED


def test_stopped_gateway_is_not_taken_for_dead_machines(site: Site, name: str) -> None:
    """A gateway that was frozen longer than any heartbeat limit evicts no machine when it wakes."""
    site.submit(name)
    gateway = site.service("gateway")
    gateway.suspend()
    try:
        time.sleep(LOCKED_S)
        site.wait_more_steps(name, 20)
    finally:
        gateway.resume()
    now = site.step(name)
    wait_for("the gateway knows the steps", lambda: site.ledger.max_step(name) >= now)
    assert site.incident(name) is None, site.describe(name)
    assert site.evicted() == set()
    assert [epoch.epoch for epoch in site.epochs(name)] == [1]


def assert_dead(site: Site, *names: str) -> None:
    """The fault is there: none of the services answers."""
    for service in embedded(site.settings):
        if service.name in names:
            wait_for(f"{service.name} is dead", lambda service=service: not service.healthy())
