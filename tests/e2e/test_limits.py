"""Where a playbook must not go on by itself: it reports its plan, or asks a human, and touches no machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import secret
from holdfast.inject.code_bug import with_bug
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.job import JobState, Mode
from holdfast.models.machine import MachineState
from tests.e2e.site import EXAMPLES, Site
from tests.e2e.waiting import wait_for


def test_observe_mode_touches_nothing(site: Site, name: str) -> None:
    """A job in mode `observe` gets an incident with the plan of the recovery; its ranks go on."""
    before = site.submit(name, mode=Mode.OBSERVE).machines
    pids = site.pids(name)
    site.fault("xid-79", before[0])

    incident = wait_closed(site, name)
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    assert incident.state is IncidentState.DISMISSED
    assert "observe only" in incident.summary
    site.wait_more_steps(name, 20)
    assert site.pids(name) == pids
    assert site.job(name).machines == before
    assert site.evicted() == set()
    assert site.ledger.actions(incident.id) == []

    # It must not be evicted while it trains; into the pool it does not go.
    site.http.post(f"/v1/jobs/{name}/stop").raise_for_status()
    assert site.evicted() == {before[0]}
    assert "Xid 79" in (site.ledger.machine(before[0]).cordon_reason or "")


def test_bug_in_the_first_version_asks_a_human(site: Site, name: str, tmp_path: Path) -> None:
    """There is nothing to roll back to: the job stops, the reason is reported, and no machine is blamed."""
    source = (EXAMPLES / "train_gpt.py").read_text()
    (tmp_path / "train_gpt.py").write_text(with_bug(source, "train_gpt.py"))
    before = site.submit(name, code_dir=tmp_path, first=0).machines

    incident = wait_closed(site, name)
    assert incident.incident_class is IncidentClass.USER_CODE_ERROR, site.describe(name)
    assert incident.state is IncidentState.NEEDS_HUMAN
    assert "roll back" in incident.summary
    assert site.flow_run(incident)["state"]["type"] in ("RUNNING", "COMPLETED")
    assert site.job(name).state is JobState.FAILED
    assert site.job(name).machines == before
    assert site.evicted() == set()
    assert [epoch.epoch for epoch in site.epochs(name)] == [1]
    assert site.pids(name) == {}


@pytest.mark.thorough
def test_empty_pool_gets_a_machine_while_the_job_waits(site: Site, name: str) -> None:
    """No standby is left: the engine is asked for a machine, and the job goes on with it."""
    site.release_evicted()
    site.have_standbys(len([each for each in site.ledger.machines() if each.state is not MachineState.GONE]))
    before = site.submit(name, spare=0).machines
    for standby in site.standbys():
        site.http.post(f"/v1/machines/{standby}/evict", json={}).raise_for_status()
        wait_for(f"{standby} is gone", lambda standby=standby: site.agent(standby) is None)
    wait_for("the pool is empty", lambda: not site.standbys())
    known = {machine.name for machine in site.ledger.machines()}
    site.fault("xid-79", before[1])

    incident = site.wait_recovered(name)
    kept, new = site.job(name).machines
    assert kept == before[0]
    assert new not in known
    (swap,) = [action for action in site.ledger.actions(incident.id) if action.kind == "swap"]
    assert swap.waited_s > 0


def test_agent_with_a_wrong_secret_is_refused(site: Site, tmp_path: Path) -> None:
    """It prints the remedy and ends; the gateway counts it and does not know the machine."""
    secret.create(tmp_path / "secret")
    command = [sys.executable, "-m", "holdfast.agent", "--machine", "stranger", "--home", str(tmp_path)]
    env = os.environ | {"HOLDFAST_PORT": str(site.settings.port), "HOLDFAST_PRELOAD": "json"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 1
    assert "does not accept this machine's secret" in ended.stderr
    assert "HOLDFAST_SECRET_FILE" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "stranger" not in {machine.name for machine in site.ledger.machines()}
    counted = site.http.get("/metrics").text
    assert 'holdfast_unauthorized_total{route="agents"}' in counted


def wait_closed(site: Site, name: str) -> Incident:
    """Wait until the job's first incident is closed, however."""

    def closed() -> Incident | None:
        found = site.incident(name)
        return found if found and found.state is not IncidentState.OPEN else None

    return wait_for(f"an incident of {name} closed", closed)
