from __future__ import annotations

from typing import Any

import pytest

from holdfast.deployments.gateway.api import auth
from holdfast.errors import RecoveryError, ReplacedUnitError, StaleError, UnavailableError
from holdfast.models.alert import IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState, Scope
from holdfast.testing.gateway_kit import JOB, SECRET, Kit, rank

SPEC = {"name": "new", "script": "train.py", "machines": 2, "ranks_per_machine": 2}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/alerts/alertmanager", "alerts"),
        ("/v1/agents/heartbeat", "agents"),
        ("/v1/jobs", "jobs"),
        ("/metrics", "metrics"),
        ("/v1/no/such/place", "other"),
        ("/", "other"),
    ],
)
@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x"])
async def test_wrong_secret_is_401_and_counted(kit: Kit, path: str, kind: str, header: str | None) -> None:
    """A client that cannot prove the secret learns nothing, not even which paths there are."""
    headers = {"Authorization": header} if header else {"Authorization": ""}
    answer = await kit.http.post(path, headers=headers, json={})
    assert answer.status_code == 401
    assert answer.json()["error"] == "UnauthorizedError"
    assert kit.metric("unauthorized_total", route=kind) == 1


async def test_only_health_is_open(kit: Kit) -> None:
    """The supervisor asks without a secret whether the gateway lives."""
    answer = await kit.http.get("/healthz", headers={"Authorization": ""})
    assert answer.json() == {"ok": True}


async def test_metrics_are_prometheus_text(kit: Kit) -> None:
    """With the secret, everything that is counted."""
    answer = await kit.http.get("/metrics")
    assert "holdfast_unauthorized_total" in answer.text


@pytest.mark.parametrize("path", ["/v1/agents/heartbeat", "/v1/alerts", "/v1/jobs"])
async def test_a_request_that_its_client_broke_off_is_no_error(kit: Kit, path: str) -> None:
    """A cut connection must not fill the log with tracebacks."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {SECRET}".encode()), (b"content-length", b"10")],
    }
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await kit.app(scope, receive, send)
    assert sent[0]["status"] == 400


async def test_too_large_body_is_refused_before_it_is_read(kit: Kit) -> None:
    """A declared length beyond the limit is 413 at once."""
    answer = await kit.http.post("/v1/alerts", content=b"x" * (auth.MAX_BODY_BYTES + 1))
    assert answer.status_code == 413


async def test_too_large_body_without_a_length_is_refused(kit: Kit) -> None:
    """A chunked body is counted as it comes."""

    async def chunks() -> Any:
        for _ in range(auth.MAX_BODY_BYTES // 65536 + 2):
            yield b"x" * 65536

    answer = await kit.http.post("/v1/alerts", content=chunks())
    assert answer.status_code == 413
    assert answer.json()["error"] == "TooLargeError"


async def test_submitted_job_is_started_on_standbys(kit: Kit) -> None:
    """Recorded, then launched; the answer is the running job."""
    for name in ("m0", "m1"):
        await kit.register(name)
    job = await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"})
    assert (job["state"], job["epoch"], job["machines"]) == ("running", 1, ["m0", "m1"])
    assert [version.version for version in kit.ledger.versions("new")] == ["v1"]


async def test_job_without_enough_standbys_leaves_nothing(kit: Kit) -> None:
    """Refused before anything is recorded."""
    await kit.register("m0")
    answer = await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"}, 409)
    assert answer["error"] == "NoStandbyError"
    assert not kit.ledger.jobs()


async def test_job_that_cannot_be_started_holds_no_machine(kit: Kit) -> None:
    """The launch failed: failed, its machines back in the pool, and it may be submitted again."""
    for name in ("m0", "m1"):
        await kit.register(name)
    kit.acts.launch_error = RecoveryError("the script is not there")
    answer = await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"}, 500)
    assert "the script is not there" in answer["message"]
    assert kit.ledger.job("new").state is JobState.FAILED
    assert len(kit.ledger.machines(MachineState.STANDBY)) == 2
    kit.acts.launch_error = None
    await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"})


async def test_a_job_that_is_stopped_while_it_is_submitted_stays_stopped(kit: Kit) -> None:
    """It did not fail; its machines are in the pool again."""
    for name in ("m0", "m1"):
        await kit.register(name)

    async def stopped() -> None:
        kit.ledger.set_job("new", state=JobState.STOPPED, done_at=kit.clock.now())
        raise StaleError("job 'new' is stopped (epoch 1) by now: epoch 1 does not run")

    kit.acts.during_launch = stopped
    answer = await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"}, 409)
    assert "is stopped" in answer["message"]
    assert kit.ledger.job("new").state is JobState.STOPPED
    assert len(kit.ledger.machines(MachineState.STANDBY)) == 2


async def test_crash_during_the_launch_is_looked_at_afterwards(kit: Kit) -> None:
    """A script that fails at import reports before its job is called running: not lost."""
    for name in ("m0", "m1"):
        await kit.register(name)

    async def fail() -> None:
        body = {"kind": "rank_exit", "job": "new", "machine": "m0", "rank": 0, "epoch": 1}
        evidence = {"error_type": "ImportError", "user_frame": "train.py:1 in <module>", "exit_code": 1}
        answer = await kit.post("/v1/alerts", body | {"at": kit.clock.now(), "evidence": evidence})
        assert answer["outcome"] == "settling"

    kit.acts.during_launch = fail
    await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"})
    await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.USER_CODE_ERROR


async def test_alerts_of_a_job_are_accepted_again_though_the_ledger_was_away_when_its_start_ended(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks run: what they report must not be held back for ever."""
    for name in ("m0", "m1"):
        await kit.register(name)
    job = kit.ledger.job

    def locked(name: str) -> Any:
        monkeypatch.setattr(kit.ledger, "job", job)  # once
        raise UnavailableError("locked")

    async def lock() -> None:
        body = {"kind": "rank_exit", "job": "new", "machine": "m0", "rank": 0, "epoch": 1}
        evidence = {"error_type": "ImportError", "user_frame": "train.py:1 in <module>", "exit_code": 1}
        await kit.post("/v1/alerts", body | {"at": kit.clock.now(), "evidence": evidence})
        monkeypatch.setattr(kit.ledger, "job", locked)

    kit.acts.during_launch = lock
    await kit.post("/v1/jobs", {"spec": SPEC, "code_version": "v1"})
    await kit.settled()
    assert not kit.gateway.correlator.starting.held
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.USER_CODE_ERROR


async def test_malformed_job_names_the_field(kit: Kit) -> None:
    """422 with field, value and what was expected."""
    answer = await kit.post("/v1/jobs", {"spec": SPEC | {"machines": 0}, "code_version": "v1"}, 422)
    assert "body.spec.machines = 0" in answer["message"]


async def test_pause_and_resume_hold_and_let_go(kit: Kit) -> None:
    """Ranks that live are held and let go; none is started again."""
    await kit.running_job()
    await kit.beat("m0", [rank(0, 1, kit.clock.now())])
    assert (await kit.post(f"/v1/jobs/{JOB}/pause"))["state"] == "paused"
    assert (await kit.post(f"/v1/jobs/{JOB}/resume"))["state"] == "running"
    assert kit.acts.calls == [("hold", JOB, "0"), ("hold", JOB, "None")]


async def test_stopped_job_resumes_on_new_seats(kit: Kit) -> None:
    """Its machines went back to the pool: others take their slots, then the next epoch starts."""
    await kit.running_job()
    await kit.post(f"/v1/jobs/{JOB}/stop")
    assert kit.ledger.job(JOB).state is JobState.STOPPED
    job = await kit.post(f"/v1/jobs/{JOB}/resume")
    assert (job["state"], job["epoch"]) == ("running", 2)
    assert len(kit.ledger.machines(MachineState.ACTIVE, JOB)) == 2


async def test_job_under_recovery_is_not_paused(kit: Kit) -> None:
    """A playbook decides when ranks run."""
    await kit.running_job()
    await kit.crash()
    answer = await kit.post(f"/v1/jobs/{JOB}/pause", status=409)
    assert f"{JOB}-1" in answer["message"]


async def test_stopping_a_job_dismisses_its_incidents(kit: Kit) -> None:
    """A job that was stopped is not recovered."""
    await kit.running_job()
    await kit.crash()
    await kit.post(f"/v1/jobs/{JOB}/stop")
    assert kit.incidents()[0].state is IncidentState.DISMISSED


@pytest.mark.parametrize("verb", ["pause", "resume", "stop", "update"])
async def test_unknown_job_is_404(kit: Kit, verb: str) -> None:
    """One clear message."""
    body = {"version": "v2"} if verb == "update" else None
    assert (await kit.post(f"/v1/jobs/nope/{verb}", body, 404))["error"] == "UnknownError"


async def test_update_now_starts_its_playbook(kit: Kit) -> None:
    """A hot update is an incident of its own class, and its version is kept."""
    await kit.running_job()
    answer = await kit.post(f"/v1/jobs/{JOB}/update", {"version": "v2", "note": "faster"})
    await kit.settled()
    assert answer["outcome"] == "opened"
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.CODE_UPDATE
    assert incident.alerts[0].evidence["version"] == "v2"
    assert [version.version for version in kit.ledger.versions(JOB)] == ["v1", "v2"]
    assert kit.ledger.pending_version(JOB) is None


async def test_lazy_update_waits_for_a_restart(kit: Kit) -> None:
    """The newest lazy version is pending, and nothing runs."""
    await kit.running_job()
    for version in ("v2", "v3"):
        answer = await kit.post(f"/v1/jobs/{JOB}/update", {"version": version, "when": "lazy"})
        assert answer["outcome"] == "pending"
    assert kit.ledger.pending_version(JOB) == "v3"
    assert not kit.incidents()


async def test_eviction_of_an_active_machine_is_an_incident(kit: Kit) -> None:
    """A person's word is enough."""
    await kit.running_job()
    answer = await kit.post("/v1/machines/m1/evict", {"scope": "cluster", "reason": "smells"})
    assert answer["outcome"] == "opened"
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m1")
    assert "smells" in incident.reasons[0]


async def test_eviction_of_a_machine_of_a_failed_job_needs_no_playbook(kit: Kit) -> None:
    """None would work on it: it is taken out at once, and the job takes another one when it goes on."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=JobState.FAILED)
    answer = await kit.post("/v1/machines/m1/evict", {"scope": "job", "reason": "smells"})
    assert answer["outcome"] == "cordoned"
    assert kit.acts.calls == [("take_out", "m1")]
    machine = kit.ledger.machine("m1")
    assert (machine.state, machine.job, machine.cordon_scope) == (MachineState.CORDONED, None, Scope.JOB)
    assert not kit.incidents()


async def test_eviction_and_release_of_a_standby(kit: Kit) -> None:
    """No incident; released, it is provisioned again. Twice is refused."""
    await kit.running_job()
    await kit.post("/v1/machines/m2/evict", {"reason": "test"})
    assert kit.ledger.machine("m2").state is MachineState.CORDONED
    await kit.post("/v1/machines/m2/evict", {"reason": "test"}, 409)
    machine = await kit.post("/v1/machines/m2/release")
    assert (machine["state"], machine["cordon_reason"]) == ("provisioning", None)
    await kit.post("/v1/machines/m2/release", status=409)
    assert kit.acts.calls == [("take_out", "m2"), ("release", "m2", kit.ledger.machine("m2").incarnation)]
    await kit.post("/v1/machines/m99/evict", {}, 404)
    kit.clock.advance(kit.gateway.site.lease_s + 1)
    await kit.gateway.site.refresh()
    await kit.post("/v1/machines/m2/release")  # it never came: a gateway may have been killed in the middle
    assert kit.acts.calls[-1] == ("release", "m2", ""), "whatever unit the first one started"


async def test_what_a_release_that_failed_had_started_can_be_released(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended before it registered: the record has the unit before it, which the driver does not have any more."""
    await kit.running_job()
    await kit.post("/v1/machines/m2/evict", {"reason": "test"})
    former, asked = kit.ledger.machine("m2").incarnation, list[str]()

    async def release(_machine: str, incarnation: str) -> None:
        asked.append(incarnation)
        if incarnation:
            raise ReplacedUnitError("machine m2 was restarted")

    monkeypatch.setattr(kit.acts, "release", release)
    assert (await kit.post("/v1/machines/m2/release"))["state"] == "provisioning"
    assert asked == [former, ""]


async def test_what_registered_since_and_was_evicted_again_is_not_released(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is out for a fault of its own, unknown to the person who asked."""
    await kit.running_job()
    await kit.post("/v1/machines/m2/evict", {"reason": "test"})
    former, asked = kit.ledger.machine("m2").incarnation, list[str]()

    async def release(machine: str, incarnation: str) -> None:
        asked.append(incarnation)
        kit.ledger.set_machine(machine, incarnation="i9", state=MachineState.CORDONED)
        raise ReplacedUnitError("machine m2 was restarted")

    monkeypatch.setattr(kit.acts, "release", release)
    await kit.post("/v1/machines/m2/release", status=409)
    assert asked == [former]
    assert kit.ledger.machine("m2").state is MachineState.CORDONED


async def test_status_shows_jobs_ranks_machines_and_incidents(kit: Kit) -> None:
    """The fields that `holdfast status --json` promises."""
    await kit.running_job()
    await kit.beat("m0", [rank(0, 7, kit.clock.now())], marks={7: kit.clock.now()})
    await kit.crash(rank=1)
    status = await kit.get("/v1/status")
    (job,) = status["jobs"]
    assert {"name", "state", "epoch", "step", "ettr", "code_version", "machines", "ranks"} <= job.keys()
    assert (job["step"], job["ranks"][0]["pid"], job["ranks"][0]["machine"]) == (7, 100, "m0")
    assert [machine["name"] for machine in status["machines"]] == ["m0", "m1", "m2"]
    assert status["machines"][0]["incarnation"] == "i1"
    assert status["incidents"][0]["id"] == f"{JOB}-1"
    assert status["pool"]["standbys"] == ["m2"]
    assert status["prefect"]["up"] is True


async def test_incident_is_listed_with_its_story(kit: Kit) -> None:
    """Incident, actions and alerts; filters; unknown ones are 404."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.begin(f"{JOB}-1", 1, "pause:e1", "pause", {"epoch": 1})
    story = await kit.get(f"/v1/incidents/{JOB}-1")
    assert story["incident"]["incident_class"] == "job_crash"
    assert story["actions"][0]["key"] == "pause:e1"
    assert story["alerts"][0]["outcome"] == "opened"
    assert len(await kit.get(f"/v1/incidents?job={JOB}&state=open")) == 1
    assert await kit.get("/v1/incidents?state=recovered") == []
    assert (await kit.get("/v1/incidents/nope-1", 404))["error"] == "UnknownError"
    assert (await kit.get("/v1/incidents?job=nope", 404))["error"] == "UnknownError"


async def test_listings(kit: Kit) -> None:
    """Jobs, machines, history."""
    await kit.running_job()
    assert (await kit.get("/v1/jobs"))[0]["spec"]["name"] == JOB
    assert (await kit.get(f"/v1/jobs/{JOB}"))["epoch"] == 1
    history = await kit.get(f"/v1/jobs/{JOB}/history")
    assert history["epochs"][0]["epoch"] == 1
    assert len(await kit.get("/v1/machines")) == 3
