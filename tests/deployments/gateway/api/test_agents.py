"""Agents' registrations, heartbeats and reports: answers, steps, lost time, the end of a job."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.deployments.gateway.page.job_view import job_view
from holdfast.errors import UnavailableError
from holdfast.models.alert import Classification, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit, rank, start_epoch


async def test_first_registration_makes_a_standby(kit: Kit) -> None:
    """A machine that registers for the first time is a standby."""
    await kit.register("m0")
    assert kit.ledger.machine("m0").state is MachineState.STANDBY
    assert (await kit.beat("m0"))["ok"]


async def test_what_a_tool_printed_keeps_no_machine_from_registering(kit: Kit) -> None:
    """PostgreSQL takes no NUL: a registration that it refuses would come again for ever."""
    failed = {"check": "dcgm", "machine": "m0", "ok": False, "detail": "bad\x00 output"}
    body = {"machine": "m0", "incarnation": "i1", "address": "a:1", "data_address": "a:2", "pid": 1}
    await kit.post("/v1/agents/register", body | {"checks": [failed]})
    reason = kit.ledger.machine("m0").cordon_reason or ""
    assert "bad" in reason
    assert "output" in reason
    assert "\0" not in reason
    assert reason.isprintable()


@pytest.mark.parametrize("path", ["register", "heartbeat", "events"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b'"\xff"', b'{"machine": "\\ud800"}', b"\xff\xfe{\0"]
)
async def test_a_message_that_cannot_be_read_is_refused_in_one_line(
    kit: Kit, path: str, content: bytes
) -> None:
    """Empty, half, nested without end, not UTF-8: no fault of the gateway's."""
    answer = await kit.http.post(f"/v1/agents/{path}", content=content)
    assert answer.status_code == 422
    assert answer.json()["message"].startswith("the body is not JSON: ")
    assert len(answer.json()["message"]) < 200


async def test_heartbeat_of_an_unknown_machine_asks_for_registration(kit: Kit) -> None:
    """404 makes an agent register."""
    assert (await kit.beat("m9", status=404))["error"] == "UnknownError"


async def test_heartbeat_of_an_old_incarnation_is_stale(kit: Kit) -> None:
    """409 makes a replaced agent end."""
    await kit.register("m0", "i1")
    await kit.register("m0", "i2")
    assert (await kit.beat("m0", incarnation="i1", status=409))["error"] == "StaleError"
    await kit.beat("m0", incarnation="i2")


async def test_heartbeat_of_an_evicted_machine_is_stale(kit: Kit) -> None:
    """An evicted machine that still lives is ordered to end, as soon as the ledger has the eviction."""
    await kit.register("m0")
    kit.ledger.set_machine("m0", state=MachineState.CORDONED, cordon_reason="bad")
    await kit.gateway.site.refresh()
    assert "bad" in (await kit.beat("m0", status=409))["message"]


async def test_released_machine_is_not_ordered_to_end(kit: Kit) -> None:
    """Before an agent is ordered to end the ledger is asked, not a view of half a second ago."""
    await kit.register("m0")
    kit.ledger.set_machine("m0", state=MachineState.CORDONED)
    await kit.gateway.site.refresh()
    kit.ledger.set_machine("m0", state=MachineState.STANDBY)
    await kit.beat("m0")


async def test_heartbeats_write_no_more_than_they_must(kit: Kit) -> None:
    """The ledger hears of all living machines at once, every few seconds, not of every heartbeat."""
    for name in ("m0", "m1"):
        await kit.register(name)
    registered_at = kit.clock.now()
    for _ in range(3):
        kit.clock.advance(1)
        await kit.beat("m0")
        await kit.beat("m1")
    assert {machine.seen_at for machine in kit.ledger.machines()} == {registered_at}
    await kit.gateway.touch()
    assert {machine.seen_at for machine in kit.ledger.machines()} == {kit.clock.now()}
    assert kit.gateway.site.fleet.unwritten == {}


async def test_steps_of_rank_0_become_progress(kit: Kit) -> None:
    """Marks of the machine of rank 0 count, those of others are dropped, repeated ones change nothing."""
    await kit.running_job()
    kit.clock.advance(10)
    now = kit.clock.now()
    await kit.beat("m0", marks={1: 10.0, 2: 11.0, 3: 12.0})
    await kit.beat("m1", marks={9: 99.0})
    await kit.beat("m0", marks={2: 50.0})
    (epoch,) = kit.ledger.epochs(JOB)
    assert (epoch.first_step, epoch.first_step_at) == (1, now - 2)
    assert (epoch.last_step, epoch.last_step_at) == (3, now)


async def test_clocks_of_machines_are_not_trusted(kit: Kit) -> None:
    """The time of arrival counts; a machine's own times give only ages, within the time between reports."""
    await kit.running_job()
    kit.clock.advance(10)
    await kit.beat("m0", marks={1: 9e9, 2: 9e9 + 1})
    kit.clock.advance(4)
    now = kit.clock.now()
    # Its clock was set back by years between two steps; then it leaps ahead.
    await kit.post(
        "/v1/agents/heartbeat",
        {
            "machine": "m0",
            "incarnation": "i1",
            "at": 3.0,
            "jobs": [{"job": JOB, "epoch": 1, "marks": [{"step": 3, "at": -1e9}, {"step": 4, "at": 8.0}]}],
        },
    )
    await kit.settled()
    rows = kit.ledger.stretches(JOB)
    assert [(row.begun_at, row.ended_at, row.last_step) for row in rows] == [(now - 5, now, 4)]
    found = kit.ledger.epochs(JOB)[0]
    assert (found.first_step_at, found.last_step_at) == (now - 5, now)


async def test_the_last_word_of_a_gateway_that_was_away_has_its_age(kit: Kit) -> None:
    """An event that waited for the gateway carries its age."""
    await kit.running_job()
    kit.clock.advance(60)
    body = {"machine": "m0", "incarnation": "i1", "job": JOB, "epoch": 1, "at": 540.0}
    await kit.post("/v1/agents/events", body | {"started": [{"step": 1, "at": 500.0, "s": 5.0}]})
    assert kit.ledger.epochs(JOB)[0].first_step_at == kit.clock.now() - 40
    assert kit.ledger.stretches(JOB)[0].begun_at == kit.clock.now() - 45


async def test_the_ettr_of_a_job_that_reports_no_steps_is_not_measured(kit: Kit) -> None:
    """Plain torchrun: neither 0 % nor a metric that would page people."""
    await kit.running_job()
    kit.clock.advance(3600)
    await kit.gateway.times.tick()
    job = (await kit.get("/v1/status"))["jobs"][0]
    assert (job["ettr"], job["ettr_window"]) == (None, None)
    assert job["ettr_note"] == "not measured: no steps reported"
    assert job_view(kit.gateway, JOB)["ettr_curve"] == []
    assert "holdfast_job_ettr{" not in (await kit.http.get("/metrics")).text


async def test_lost_time_is_in_status_and_metrics(kit: Kit) -> None:
    """ETTR of the job's life and of the window, and every second by phase and class."""
    await kit.running_job()
    kit.clock.advance(10)
    await kit.beat("m0", marks={1: 5.0, 2: 10.0})
    kit.clock.advance(90)
    await kit.crash()
    job = (await kit.get("/v1/status"))["jobs"][0]
    assert job["wall_s"] == 100.0
    assert job["ettr"] == job["ettr_window"] == 0.05
    assert job["lost_by_phase_s"] == {"undetected": 90.0, "restarting": 5.0}
    assert job["lost_by_class_s"] == {"job_crash": 90.0, "": 5.0}
    assert await kit.get(f"/v1/jobs/{JOB}/time") == {
        key: job[key] for key in await kit.get(f"/v1/jobs/{JOB}/time")
    }
    await kit.gateway.times.tick()
    assert kit.metric("job_ettr", job=JOB, over="total") == 0.05
    assert kit.metric("job_lost_seconds", job=JOB, phase="undetected", incident_class="job_crash") == 90.0
    assert kit.metric("job_productive_seconds", job=JOB) == 5.0


async def test_a_job_that_has_ended_has_no_recent_ettr(kit: Kit) -> None:
    """It would stay low for ever, and the rule for a low ETTR would page people for ever."""
    await kit.running_job()
    kit.clock.advance(10)
    await kit.beat("m0", marks={1: 5.0, 2: 10.0})
    await kit.gateway.times.tick()
    assert kit.metric("job_ettr", job=JOB, over="window") > 0
    kit.ledger.set_job(JOB, state=JobState.STOPPED, done_at=kit.clock.now())
    kit.clock.advance(120)
    await kit.gateway.site.refresh()
    await kit.gateway.times.tick()
    assert kit.metric("job_ettr", job=JOB, over="total") > 0
    registry = kit.gateway.site.metrics.registry
    assert registry.get_sample_value("holdfast_job_ettr", {"job": JOB, "over": "window"}) is None


async def test_first_new_step_proves_the_recovery(kit: Kit) -> None:
    """Recovered is when a step beyond all earlier ones is done, not when recomputed ones are."""
    await kit.running_job()
    await kit.beat("m0", marks={step: float(step) for step in range(1, 6)})
    await kit.crash()
    await kit.gateway.progress.watch()
    start_epoch(kit.ledger, JOB)
    await kit.gateway.site.refresh()
    kit.clock.advance(30)
    await kit.beat("m0", epoch=2, marks={4: 20.0, 5: 21.0})
    assert kit.incidents()[0].recovered_at is None
    kit.clock.advance(2)
    await kit.beat("m0", epoch=2, marks={6: 22.0, 7: 23.0})
    assert kit.incidents()[0].recovered_at == kit.clock.now() - 1


async def test_a_recovery_that_never_stopped_training_is_proved_by_the_next_step(kit: Kit) -> None:
    """It counts from its end; it took hours, until the job was started again for another reason."""
    await kit.running_job()
    await kit.beat("m0", marks={step: float(step) for step in range(1, 6)})
    await kit.crash()
    kit.close_incident(f"{JOB}-1")
    await kit.gateway.progress.watch()
    assert kit.incidents()[0].recovered_at is None
    kit.clock.advance(2)
    await kit.beat("m0", marks={6: 6.0})
    assert kit.incidents()[0].recovered_at == kit.clock.now()


async def test_recovery_is_noticed_by_a_later_gateway(kit: Kit) -> None:
    """The new steps came while no gateway watched the incident: the ledger's rows say when."""
    await kit.running_job()
    await kit.beat("m0", marks={5: 5.0})
    await kit.crash()
    start_epoch(kit.ledger, JOB)
    kit.ledger.mark(JOB, 2, 6, kit.clock.now() + 31)
    kit.close_incident(f"{JOB}-1")
    await kit.restart()
    await kit.gateway.progress.watch()
    assert kit.incidents()[0].recovered_at == kit.clock.now() + 31


async def test_job_is_done_when_all_ranks_ended_well(kit: Kit) -> None:
    """Status 0 of every rank, from events and heartbeats together; then its machines are freed."""
    await kit.running_job()
    done = {"machine": "m0", "incarnation": "i1", "job": JOB, "epoch": 1, "done": [0, 1]}
    await kit.post("/v1/agents/events", done)
    assert kit.ledger.job(JOB).state is JobState.RUNNING
    ended = [rank(number, 9, kit.clock.now(), phase="exited", exit_code=0) for number in (2, 3)]
    await kit.beat("m1", ended)
    assert kit.ledger.job(JOB).state is JobState.DONE
    assert kit.ledger.epochs(JOB)[0].close_reason == "done"
    kit.clock.advance(60)
    await kit.gateway.releases.tick()
    assert len(kit.ledger.machines(MachineState.STANDBY)) == 3


async def test_a_job_whose_ranks_end_well_because_a_playbook_stops_them_is_not_done(kit: Kit) -> None:
    """They handle SIGTERM; an agent of an earlier release reports their status before the next epoch starts."""
    await kit.running_job()
    found = Classification(incident_class=IncidentClass.CODE_UPDATE, confidence=1.0, reasons=("update",))
    incident = kit.ledger.open_incident(JOB, found, 1, [], kit.clock.now())
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    kit.ledger.begin(incident.id, 1, "pause:e1", "pause", {"epoch": 1})
    await kit.gateway.progress.note_done(JOB, 1, [0, 1, 2, 3])
    assert kit.ledger.job(JOB).state is JobState.RECOVERING
    start_epoch(kit.ledger, JOB)
    await kit.gateway.progress.note_done(JOB, 2, [0, 1, 2, 3])
    assert kit.ledger.job(JOB).state is JobState.DONE


@pytest.mark.parametrize("asked", [IncidentClass.CODE_UPDATE, IncidentClass.SCALE_JOB])
async def test_a_change_that_was_not_begun_ends_with_its_job(kit: Kit, asked: IncidentClass) -> None:
    """The new code was being fetched, or the ranks were on their way to a boundary: it would start them again."""
    await kit.running_job()
    found = Classification(incident_class=asked, confidence=1.0, reasons=("asked for",))
    incident = kit.ledger.open_incident(JOB, found, 1, [], kit.clock.now())
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    kit.ledger.begin(incident.id, 1, "hold:e1", "hold", {})
    await kit.gateway.progress.note_done(JOB, 1, [0, 1, 2, 3])
    assert kit.ledger.job(JOB).state is JobState.DONE
    assert kit.incidents()[0].state is IncidentState.DISMISSED


async def test_a_question_ends_with_its_job_also_when_the_gateway_dies_in_between(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later look at a job that is done finds nothing to end: the question goes before the job's state is written."""
    await kit.running_job()
    found = Classification(incident_class=IncidentClass.FAIL_SLOW, confidence=0.5, reasons=("slow",))
    kit.ledger.open_incident(JOB, found, 1, [], kit.clock.now())

    def dies(*_: Any, **__: Any) -> None:
        raise UnavailableError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(kit.ledger, "set_job", dies)
        with pytest.raises(UnavailableError):
            await kit.gateway.progress.note_done(JOB, 1, [0, 1, 2, 3])
    assert kit.ledger.job(JOB).state is JobState.RUNNING
    assert kit.incidents()[0].state is IncidentState.DISMISSED
    await kit.restart()
    await kit.gateway.progress.note_done(JOB, 1, [0, 1, 2, 3])
    assert kit.ledger.job(JOB).state is JobState.DONE


async def test_what_a_stop_left_behind_is_freed_later(kit: Kit) -> None:
    """The process that stopped the job may have died on the way; a failed job keeps its machines for a person."""
    await kit.running_job()
    for state, freed in ((JobState.FAILED, 0), (JobState.STOPPED, 2)):
        kit.ledger.set_job(JOB, state=state, done_at=kit.clock.now())
        await kit.gateway.site.refresh()
        before = len(kit.ledger.machines(MachineState.STANDBY))
        kit.clock.advance(60)
        await kit.gateway.releases.tick()
        assert len(kit.ledger.machines(MachineState.STANDBY)) == before
        kit.clock.advance(61)
        await kit.gateway.releases.tick()
        assert len(kit.ledger.machines(MachineState.STANDBY)) == before + freed


async def test_report_of_alerts_answers_each(kit: Kit) -> None:
    """A refused alert of a report does not keep the others out; strangers' machines are refused."""
    await kit.running_job()
    exit_of = {"kind": "rank_exit", "job": JOB, "at": kit.clock.now(), "epoch": 1}
    body = {
        "machine": "m0",
        "incarnation": "i1",
        "alerts": [
            exit_of | {"machine": "m1", "rank": 2},
            exit_of | {"rank": 99},
            exit_of | {"rank": 1, "evidence": {"signal": "SIGKILL"}},
        ],
    }
    answer = await kit.post("/v1/agents/events", body)
    assert [one["outcome"] for one in answer["outcomes"]] == ["refused", "refused", "opened"]
    assert kit.incidents()[0].machine == "m0"


async def test_report_of_an_old_incarnation_is_stale(kit: Kit) -> None:
    """Nothing of a replaced agent counts."""
    await kit.running_job()
    await kit.post("/v1/agents/events", {"machine": "m0", "incarnation": "old"}, 409)


async def test_checkpoints_are_recorded(kit: Kit) -> None:
    """An agent reports manifests that it wrote."""
    await kit.running_job()
    checkpoint = {"job": JOB, "step": 20, "epoch": 1, "world_size": 4, "key": "k"}
    body = {"machine": "m0", "incarnation": "i1", "checkpoints": [checkpoint]}
    await kit.post("/v1/agents/events", body)
    (listed,) = await kit.get(f"/v1/checkpoints?job={JOB}")
    assert listed["step"] == 20


async def test_needs_human_is_not_reopened_by_progress(kit: Kit) -> None:
    """Only open and recovered incidents are proved recovered by steps."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.set_incident(f"{JOB}-1", state=IncidentState.NEEDS_HUMAN)
    start_epoch(kit.ledger, JOB)
    await kit.gateway.site.refresh()
    await kit.gateway.progress.watch()
    await kit.beat("m0", epoch=2, marks={50: 5.0})
    assert kit.incidents()[0].recovered_at is None
