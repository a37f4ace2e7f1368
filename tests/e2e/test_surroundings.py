"""Playbooks for faults around the job, asked for by a person; approvals; and checks of machines outside of jobs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

CHECKS = {
    IncidentClass.NETWORK_FAULT: {"check": 4, "rung": 1, "replenish": 1},
    IncidentClass.STORAGE_FAULT: {"await": 1, "check": 1, "rung": 1, "replenish": 1},
    IncidentClass.HOST_PRESSURE: {"check": 1, "rung": 1, "replenish": 1},
    IncidentClass.FAIL_SLOW: {"vote": 1, "hold": 1, "check": 6, "rung": 1, "replenish": 1},
    IncidentClass.EXTERNAL_SERVICE: {"await": 1, "rung": 1},
}
IN_CI = (IncidentClass.FAIL_SLOW,)
"""The one with all tiers, and a vote before them; the others run some of these."""


def say(site: Site, name: str, incident_class: IncidentClass) -> None:
    """A person reports a fault of the job."""
    evidence = {"class": incident_class.value, "by": "ann", "text": "looks like it"}
    body = {
        "kind": "manual",
        "job": name,
        "at": 0.0,
        "evidence": evidence,
        "fingerprint": f"{name}:{incident_class}",
    }
    body["at"] = site.ledger._clock.now()
    answer = site.http.post("/v1/alerts", json=body)
    assert answer.is_success, answer.text
    assert answer.json()["outcome"] == "opened", answer.text


@pytest.mark.parametrize(
    "incident_class",
    [
        pytest.param(each, marks=[] if each in IN_CI else pytest.mark.thorough, id=each.value)
        for each in CHECKS
    ],
)
def test_healthy_job_is_checked_and_goes_on_in_place(
    site: Site, name: str, incident_class: IncidentClass
) -> None:
    """Every tier runs for real and finds nothing: no machine is touched, and training goes on."""
    before = site.submit(name, spare=0).machines
    say(site, name, incident_class)
    incident = site.wait_recovered(name)
    assert incident.incident_class is incident_class
    expected = {"pause": 1, "start": 1, "verify": 1, **CHECKS[incident_class]}
    assert dict(site.done(incident)) == expected, site.describe(name)
    assert site.job(name).machines == before
    assert site.evicted() == set()
    assert site.job(name).state is JobState.RUNNING


def hold(site: Site, name: str) -> tuple[str, ...]:
    """A job that is held, so that its loss does not show the fault before a person does; its machines."""
    machines = site.submit(name).machines

    def held() -> bool:
        answer = site.http.post(f"/v1/jobs/{name}/pause")
        # 503: an agent stands still for longer than it is waited for. The ranks go on, and a person asks again.
        return answer.status_code != httpx.codes.SERVICE_UNAVAILABLE and answer.raise_for_status().is_success

    wait_for("the job is held", held)
    return machines


def wait_suspended(site: Site, name: str) -> tuple[Incident, str]:
    """Wait until the playbook asks; the incident and its run."""

    def suspended() -> tuple[Incident, str] | None:
        incident = site.incident(name)
        if incident is None or not incident.flow_run_id:
            return None
        try:
            run = site.flow_run(incident)
        except httpx.TimeoutException:  # a busy host
            return None
        return (incident, run["id"]) if run["state"]["type"] == "PAUSED" else None

    return wait_for(lambda: f"a question of {name}: {site.describe(name)}", suspended, every_s=0.25)


def resume(site: Site, run: str, answer: dict[str, Any]) -> dict[str, Any]:
    """As the form in the Prefect UI does; again while Prefect has no form yet.

    A run is suspended a moment before it stores what may be answered; on a busy host the moment is long.
    """

    def taken() -> httpx.Response | None:
        sent = site.prefect.post(f"/flow_runs/{run}/resume", json={"run_input": answer})
        return None if "schema not found" in sent.text else sent

    sent = wait_for("Prefect takes the answer", taken, every_s=0.5)
    sent.raise_for_status()
    found: dict[str, Any] = sent.json()
    return found


def test_eviction_waits_for_approval_in_the_ui(site: Site, name: str) -> None:
    """The run is suspended while the job trains; wrong input is refused; the answer evicts, and is in the report."""
    before = hold(site, name)
    site.fault("bad-matmul", before[1])
    request = {"job": name, "reason": "the loss jumps"}
    run = site.run_deployment("silent-corruption", {"incident": request})
    incident, suspended = wait_suspended(site, name)
    assert suspended == run
    assert site.evicted() == set()
    assert site.job(name).state is JobState.RECOVERING
    # Prefect answers 200 all the same.
    assert resume(site, run, {"approve": "perhaps"})["status"] == "REJECT"
    assert resume(site, run, {"approve": True, "by": "ann", "reason": "seen it"})["status"] == "ACCEPT"

    incident = site.wait_recovered(name)
    assert site.evicted() == {before[1]}
    assert site.attempts(incident) == 1, site.describe(name)
    assert [each.id for each in site.ledger.incidents(job=name)] == [incident.id]
    done = dict(site.done(incident))
    assert (done["approve"], done["evict"], done["pause"], done["check"]) == (1, 1, 1, 3)
    (asked,) = [action for action in site.ledger.actions(incident.id) if action.kind == "approve"]
    assert asked.result == {"approve": True, "by": "ann", "reason": "seen it"}


def test_refused_eviction_leaves_the_job_running(site: Site, name: str) -> None:
    """Answered on the command line: nothing is evicted, the job is not stopped for it, a held one stays held."""
    before = hold(site, name)
    site.fault("bad-matmul", before[0])
    say(site, name, IncidentClass.SILENT_CORRUPTION)
    incident, _ = wait_suspended(site, name)
    body = {"approve": False, "by": "ann", "reason": "it is needed elsewhere"}
    site.http.post(f"/v1/incidents/{incident.id}/approve", json=body).raise_for_status()

    def closed() -> Incident | None:
        found = site.ledger.incident(incident.id)
        return found if found.state is not IncidentState.OPEN else None

    ended = wait_for("the incident is closed", closed)
    assert ended.state is IncidentState.NEEDS_HUMAN
    assert "refused by ann" in ended.summary
    assert site.evicted() == set()
    assert "the job was not stopped" in ended.summary
    assert site.job(name).state is JobState.PAUSED
    assert site.job(name).machines == before
    assert set(site.pids(name)) == {0, 1}
    # Stopped, its machine that computes wrongly must not serve others.
    site.http.post(f"/v1/jobs/{name}/stop").raise_for_status()
    site.http.post(f"/v1/machines/{before[0]}/evict", json={}).raise_for_status()


@pytest.mark.thorough
def test_standby_that_computes_wrongly_leaves_the_pool(site: Site) -> None:
    """The scheduled inspection computes on every standby; a dry run only reports."""
    site.have_standbys(3)
    bad, *good = site.standbys()
    site.fault("bad-matmul", bad)
    dry_run = site.run_deployment("inspect-standbys", {"inspection": {"dry_run": True}})
    (artifact,) = wait_for("the findings", lambda: site.artifacts(dry_run))
    assert "rows are wrong" in artifact["data"]
    assert bad in site.standbys()
    site.run_deployment("inspect-standbys", {"inspection": {}})
    wait_for("it is out", lambda: site.evicted() == {bad})
    assert set(good) <= set(site.standbys())


@pytest.mark.thorough
def test_machine_is_admitted_after_its_delivery_checks(site: Site) -> None:
    """One that waits joins the pool when all checks pass.

    Another one was released and is still starting: it has the address of its former life until its agent registers,
    and is left to come.
    """
    site.have_standbys(3)
    name, starting = site.standbys()[:2]
    site.http.post(f"/v1/machines/{starting}/evict", json={}).raise_for_status()
    wait_for("its agent is gone", lambda: site.agent(starting) is None)
    for each in (name, starting):
        site.ledger.set_machine(each, state=MachineState.PROVISIONING)
    run = site.run_deployment("admit-machine", {"admission": {"machines": [name, starting]}})
    wait_for("it stands by", lambda: name in site.standbys())
    (artifact,) = wait_for("the findings", lambda: site.artifacts(run))
    assert f"admitted {name}" in artifact["description"]
    assert "1 machine checked" in artifact["data"]
    assert site.ledger.machine(starting).state is MachineState.PROVISIONING
    site.ledger.set_machine(starting, state=MachineState.CORDONED)
