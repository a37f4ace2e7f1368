"""Stale, resolved, unknown or unsigned events cause no action; a control shows that the like of them would."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from holdfast.models.alert import IncidentClass
from holdfast.models.job import Job
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for


@pytest.fixture
def job(site: Site, name: str) -> Job:
    """A job in its second epoch: the first one ended with a rank's death."""
    machines = site.submit(name).machines
    site.fault("kill-rank", machines[0])
    site.wait_recovered(name)
    return site.job(name)


def alert(of: Job, /, **fields: Any) -> dict[str, Any]:
    """A rank's exit, now, on the job's first machine."""
    machine = of.machines[0]
    return {"kind": "rank_exit", "job": of.name, "machine": machine, "rank": 0, "at": time.time()} | fields


def webhook(job: Job, status: str, **labels: str) -> dict[str, Any]:
    """An Alertmanager payload with one Xid 79 of the job's first machine."""
    common = {"alertname": "HoldfastXid", "kind": "xid", "xid": "79", "holdfast_job": job.name} | labels
    one = {
        "status": status,
        "labels": common | {"machine": job.machines[0]},
        "fingerprint": f"e2e-{job.name}",
    }
    return {"version": "4", "status": status, "alerts": [one]}


def assert_nothing_acts(site: Site, before: dict[str, Any], name: str) -> None:
    """No incident, no epoch, no process, no machine has changed; and the job goes on."""
    # Long enough for the reconciler and all detectors to look: they do with each second, the job makes 20 steps.
    site.wait_more_steps(name, 40)
    assert site.counts() == before


def test_nothing_that_is_stale_acts(site: Site, job: Job) -> None:
    """Every kind of refused report, one after the other, with the words that say why."""
    before = site.counts()
    incarnation = site.ledger.machine(job.machines[0]).incarnation
    # Of a kind that was not sent in that epoch: what is known already is a duplicate.
    late = alert(job, kind="non_finite", epoch=1, incarnation=incarnation, evidence={"step": 1})
    refusals = {
        "stale epoch": (late, 409, "epoch 2"),
        "epoch to come": (alert(job, epoch=9, incarnation=incarnation), 409, "epoch 9"),
        "stale incarnation": (
            alert(job, epoch=2, incarnation="of-an-earlier-life"),
            409,
            "of-an-earlier-life",
        ),
        "resolved": (alert(job, epoch=2, incarnation=incarnation, firing=False), 409, "resolved"),
        "unknown job": (alert(job, job="nobody-s-job", machine=None), 404, "nobody-s-job"),
        "unknown machine": (alert(job, job=None, machine="m999"), 404, "m999"),
        "unknown rank": (alert(job, epoch=2, incarnation=incarnation, rank=77), 404, "77"),
    }
    for what, (body, status, word) in refusals.items():
        answer = site.http.post("/v1/alerts", json=body)
        assert answer.status_code == status, (what, answer.text)
        assert word in answer.json()["message"], (what, answer.text)
    assert_nothing_acts(site, before, job.name)


@pytest.mark.thorough
def test_resolved_webhook_does_not_act(site: Site, job: Job) -> None:
    """Alertmanager's report that an Xid is over evicts no machine, nor do unknown jobs and kinds beside it."""
    before = site.counts()
    payload = webhook(job, "resolved")
    payload["alerts"] += webhook(job, "firing", holdfast_job="nobody-s-job")["alerts"]
    payload["alerts"] += webhook(job, "firing", kind="tea-time")["alerts"]
    answer = site.http.post("/v1/alerts/alertmanager", json=payload)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [result["outcome"] for result in results] == ["refused"] * 3, results
    assert_nothing_acts(site, before, job.name)


@pytest.mark.thorough
def test_wrong_secret_does_nothing(site: Site, job: Job) -> None:
    """Neither the gateway nor an agent obeys a stranger, and both count the attempt."""
    before = site.counts()
    wrong = {"Authorization": "Bearer of-bad-news"}
    for headers in (wrong, {}):
        for path, body in (
            ("/v1/alerts", alert(job, epoch=job.epoch)),
            ("/v1/alerts/alertmanager", webhook(job, "firing")),
            (f"/v1/jobs/{job.name}/stop", {}),
            (f"/v1/machines/{job.machines[0]}/evict", {}),
        ):
            answer = httpx.post(f"{site.settings.gateway}{path}", json=body, headers=headers, timeout=120)
            assert answer.status_code == 401, (path, answer.text)
    counted = site.http.get("/metrics").text
    assert "holdfast_unauthorized_total{" in counted

    machine = site.ledger.machine(job.machines[0])
    fence = {"job": job.name, "epoch": 99, "incarnation": machine.incarnation}
    refused = httpx.post(f"http://{machine.address}/v1/fence", json=fence, headers=wrong, timeout=120)
    assert refused.status_code == 401
    assert_nothing_acts(site, before, job.name)


@pytest.mark.thorough
def test_stale_commands_are_refused_by_the_agent(site: Site, job: Job) -> None:
    """A playbook that lost its turn cannot stop or start anything: epoch and incarnation are checked there too."""
    before = site.counts()
    machine = site.ledger.machine(job.machines[0])
    url = f"http://{machine.address}"
    dead = {"job": job.name, "epoch": job.epoch, "incarnation": "of-an-earlier-life"}
    old = {"job": job.name, "epoch": 1, "incarnation": machine.incarnation, "world_size": 2}
    for path, body in (("/v1/fence", dead), ("/v1/rendezvous", old)):
        answer = httpx.post(f"{url}{path}", json=body, headers=site.headers, timeout=120)
        assert answer.status_code == 409, (path, answer.text)
        assert answer.json()["error"] == "StaleError"
    # A fence of the first epoch has no news: the second one goes on.
    late = {"job": job.name, "epoch": 1, "incarnation": machine.incarnation}
    httpx.post(f"{url}/v1/fence", json=late, headers=site.headers, timeout=120).raise_for_status()
    assert_nothing_acts(site, before, job.name)


@pytest.mark.thorough
def test_firing_webhook_does_act(site: Site, job: Job) -> None:
    """The control: the same payload, firing and signed, replaces the machine."""
    answer = site.http.post("/v1/alerts/alertmanager", json=webhook(job, "firing"))
    assert answer.status_code == 200, answer.text
    incident = wait_for("an incident", lambda: site.incident(job.name, 2))
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    site.wait_recovered(job.name, 2)
    assert site.evicted() == {job.machines[0]}
    # Alertmanager repeats what still fires: it is the same signal, and about a machine that is out.
    before = site.counts()
    site.http.post("/v1/alerts/alertmanager", json=webhook(job, "firing")).raise_for_status()
    assert_nothing_acts(site, before, job.name)
