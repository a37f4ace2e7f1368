from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.deployments.gateway.detectors.unreported_exits import LACKS_S
from holdfast.deployments.gateway.intake.outcome import Outcome
from holdfast.deployments.gateway.page.job_view import job_view
from holdfast.errors import UnavailableError
from holdfast.models.agent import Heartbeat, JobOnMachine, RankState
from holdfast.models.alert import Alert, Classification, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit, rank, start_epoch


async def test_first_registration_makes_a_standby(kit: Kit) -> None:
    """A machine that says its first word is a standby."""
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
    """An evicted machine that still lives is told to end, as soon as the ledger says so."""
    await kit.register("m0")
    kit.ledger.set_machine("m0", state=MachineState.CORDONED, cordon_reason="bad")
    await kit.gateway.site.refresh()
    assert "bad" in (await kit.beat("m0", status=409))["message"]


async def test_released_machine_is_not_told_to_end(kit: Kit) -> None:
    """Before an agent is told to end the ledger is asked, not a view of half a second ago."""
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
    assert kit.gateway.site.fleet.heard == {}


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
    """When a report arrived counts; a machine's own times tell ages only, within the time between reports."""
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
    """An event that waited for the gateway says how old it is."""
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
    """Whoever stopped the job may have died in the middle of it; a job that failed keeps its machines for a person."""
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
    """An agent tells of manifests that it wrote."""
    await kit.running_job()
    checkpoint = {"job": JOB, "step": 20, "epoch": 1, "world_size": 4, "key": "k"}
    body = {"machine": "m0", "incarnation": "i1", "checkpoints": [checkpoint]}
    await kit.post("/v1/agents/events", body)
    (listed,) = await kit.get(f"/v1/checkpoints?job={JOB}")
    assert listed["step"] == 20


async def test_agent_that_began_anew_lost_its_ranks(kit: Kit) -> None:
    """A new incarnation of an active machine is a crash of the job on that machine."""
    await kit.running_job()
    await kit.register("m1", "i2")
    await kit.settled()
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.JOB_CRASH, "m1")


async def without_ranks(kit: Kit, seconds: float, *, silent: bool = False) -> None:
    """The only machine of the job reports that it runs nothing, while the gateway looks."""
    for _ in range(int(seconds)):
        if not silent:
            await kit.beat("m0")
        await kit.gateway.site.refresh()
        await kit.gateway.exits.tick()
        await kit.settled()
        kit.clock.advance(1.0)


async def test_a_job_whose_only_machine_has_no_ranks_is_recovered(kit: Kit) -> None:
    """Its agent came back while the gateway was killed: no event tells of it, and there is no peer to fall."""
    await kit.running_job(machines=1)
    limit_s = LACKS_S + 3 * kit.settings.heartbeat_s
    await without_ranks(kit, limit_s - 2.0)
    assert not kit.incidents()
    await without_ranks(kit, 5.0)
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.JOB_CRASH, "m0")
    assert "no ranks of epoch 1" in str(incident.alerts[0].evidence["message"])


async def test_machines_that_have_ranks_or_are_silent_or_held_lack_none(kit: Kit) -> None:
    """The controls: what reports nothing may be cut off; what is started, or held, is not to run."""
    await kit.running_job(machines=1)
    for _ in range(3):
        await without_ranks(kit, LACKS_S - 5.0)
        await kit.beat("m0", [rank(0, 3, kit.clock.now()), rank(1, 3, kit.clock.now())])
        await kit.gateway.exits.tick()
    await without_ranks(kit, 2 * LACKS_S, silent=True)
    kit.gateway.correlator.starting.launching(JOB)
    await without_ranks(kit, 2 * LACKS_S)
    await kit.gateway.correlator.starting.launched(JOB)
    kit.ledger.set_job(JOB, state=JobState.PAUSED)
    await without_ranks(kit, 2 * LACKS_S)
    assert not kit.incidents()


async def test_ranks_of_an_epoch_that_the_ledger_lost_are_ranks(kit: Kit) -> None:
    """A ledger that was restored from a copy knows an older epoch: the job trains, and is not ended for that."""
    await kit.running_job(machines=1)
    for _ in range(8):
        await kit.beat("m0", [rank(0, 3, kit.clock.now()), rank(1, 3, kit.clock.now())], epoch=2)
        await without_ranks(kit, 20.0, silent=True)
    assert not kit.incidents()


async def test_a_report_that_is_read_in_part_lacks_no_ranks(kit: Kit) -> None:
    """An agent of another release may report its job in a way that is left out here: the job trains."""
    await kit.running_job(machines=1)
    for _ in range(8):
        unread = {"job": JOB, "epoch": 2**40}
        body = {"machine": "m0", "incarnation": "i1", "at": kit.clock.now(), "jobs": [unread]}
        await kit.post("/v1/agents/heartbeat", body)
        await without_ranks(kit, 20.0, silent=True)
    assert not kit.incidents()


async def test_machines_without_ranks_are_reported_until_the_ledger_has_it(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next round, not a minute later; and all of them together."""
    await kit.running_job()
    heard: list[list[str | None]] = []

    async def accept_all(alerts: Iterable[Alert]) -> list[Outcome]:
        machines = [alert.machine for alert in alerts]
        heard.append(machines)
        if machines and heard.count(machines) == 1:
            raise UnavailableError("the ledger is away")
        return []

    monkeypatch.setattr(kit.gateway.correlator, "accept_all", accept_all)

    async def look() -> None:
        for machine in ("m0", "m1"):
            await kit.beat(machine)
        await kit.gateway.exits.tick()

    await look()
    kit.clock.advance(LACKS_S + 3 * kit.settings.heartbeat_s + 1.0)
    with pytest.raises(UnavailableError):
        await look()
    await look()
    await look()
    assert [machines for machines in heard if machines] == [["m0", "m1"], ["m0", "m1"]]


async def test_exit_that_no_event_told_is_found_in_heartbeats(kit: Kit) -> None:
    """The event was lost with an earlier gateway: the heartbeat shows the dead rank."""
    await kit.running_job()
    ranks = [rank(0, 3, kit.clock.now()), rank(1, 3, kit.clock.now(), phase="exited", exit_code=-9)]
    await kit.beat("m0", ranks)
    await kit.gateway.exits.tick()
    assert not kit.incidents()
    kit.clock.advance(1.5)
    await kit.gateway.exits.tick()
    await kit.settled()
    (incident,) = kit.incidents()
    assert (incident.machine, incident.rank) == ("m0", 1)


async def test_silent_machine_with_a_dead_agent_is_lost(kit: Kit) -> None:
    """Missing heartbeats and a failing probe together are a machine fault."""
    await kit.running_job()
    await _pass(kit, 3.0, speaking=("m0", "m2"), dead="m1")
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m1")


async def test_silent_machine_whose_agent_answers_is_not_lost(kit: Kit) -> None:
    """Heartbeats alone prove nothing."""
    await kit.running_job()
    await _pass(kit, 10.0, speaking=("m0", "m2"))
    assert not kit.incidents()
    assert "m1" in kit.prober.asked


async def test_silence_is_not_called_early(kit: Kit) -> None:
    """Three short intervals are not enough: 1.5 s is the least."""
    await kit.running_job()
    await _pass(kit, 1.4, speaking=("m0", "m2"), dead="m1")
    assert not kit.incidents()


async def test_slow_agent_gets_more_time_than_a_dead_one(kit: Kit) -> None:
    """No answer in time may be a busy host: only a longer silence makes it a lost machine."""
    await kit.running_job()
    kit.prober.slow = {"m1"}
    await _pass(kit, 4.0, speaking=("m0", "m2"))
    assert not kit.incidents()
    await _pass(kit, 3.0, speaking=("m0", "m2"))
    assert kit.incidents()[0].machine == "m1"


async def test_lost_standby_leaves_the_pool(kit: Kit) -> None:
    """A standby that died is gone; no job is concerned."""
    await kit.running_job()
    await _pass(kit, 3.0, speaking=("m0", "m1"), dead="m2")
    assert not kit.incidents()
    assert kit.ledger.machine("m2").state is MachineState.GONE
    assert kit.metric("standby_cordons_total", kind="machine_lost") == 1


async def test_new_gateway_gives_agents_time_to_speak(kit: Kit) -> None:
    """Silence before the gateway listened proves nothing."""
    await kit.running_job()
    kit.clock.advance(3600)
    kit.prober.dead = {"m1"}
    await kit.restart()
    await kit.gateway.silent.tick()
    assert not kit.incidents()
    await _pass(kit, 3.0, speaking=("m0", "m2"), dead="m1")
    assert kit.incidents()[0].machine == "m1"


async def test_gateway_that_stood_still_blames_nobody(kit: Kit) -> None:
    """After a pause of its own the gateway waits a window before it counts silence."""
    await kit.running_job()
    await _pass(kit, 1.0, speaking=("m0", "m1", "m2"))
    kit.clock.advance(30)
    kit.prober.dead = {"m1"}
    await kit.gateway.silent.tick()
    assert not kit.incidents()


async def test_stopped_rank_is_a_hang(kit: Kit) -> None:
    """No step, and one process in state T while the others idle: the vote says hang, and who."""
    await kit.running_job()
    for step in range(1, 20):
        kit.clock.advance(0.5)
        await _both(kit, step, cpu=step * 0.5)
    for _ in range(60):
        kit.clock.advance(0.5)
        await _both(kit, 19, cpu=9.5, stopped=2)
        await kit.gateway.hangs.tick()
        if kit.incidents():
            break
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.JOB_HANG, "m1")
    evidence = incident.alerts[0].evidence
    assert evidence["ranks"] == [2]
    assert evidence["silent_s"] < 15
    await kit.gateway.hangs.tick()
    assert len(kit.incidents()) == 1


async def test_a_host_that_stood_still_is_no_hang(kit: Kit) -> None:
    """No rank made a step while everything slept. What makes none afterwards hangs, as ever."""
    await kit.running_job()
    for step in range(1, 20):
        kit.clock.advance(0.5)
        await _both(kit, step, cpu=step * 0.5)
    last = kit.clock.now()
    kit.clock.advance(60)

    async def still() -> None:
        for number in range(2):
            await kit.beat(f"m{number}", _stuck(number, last))
        await kit.gateway.hangs.tick()
        await kit.settled()

    await still()
    assert not kit.incidents()
    for _ in range(60):
        kit.clock.advance(0.5)
        await still()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_HANG
    assert incident.alerts[0].evidence["silent_s"] < 10


def _stuck(machine: int, since: float) -> list[RankState]:
    """The ranks of a machine that wait since step 19."""
    return [rank(each, 19, since, cpu_s=9.5) for each in (2 * machine, 2 * machine + 1)]


def _stuck_beat(machine: int, since: float, at: float) -> Heartbeat:
    run = JobOnMachine(job=JOB, epoch=1, ranks=tuple(_stuck(machine, since)))
    return Heartbeat(machine=f"m{machine}", incarnation="i1", at=at, jobs=(run,))


async def test_heartbeats_that_are_always_late_excuse_no_hang(kit: Kit) -> None:
    """Only the first late one of a silence counts."""
    await kit.running_job()
    for step in range(1, 20):
        kit.clock.advance(0.5)
        await _both(kit, step, cpu=step * 0.5)
    last = kit.clock.now()
    for late_s in (10, 0.5, 10):
        kit.clock.advance(late_s)
        for number in range(2):
            await kit.beat(f"m{number}", _stuck(number, last))
        await kit.gateway.hangs.tick()
        await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_HANG


async def test_machines_that_are_late_one_after_the_other_excuse_one_silence_once(kit: Kit) -> None:
    """Of a thousand machines one is late in every window: no hang of their job would be seen."""
    await kit.running_job()
    for step in range(1, 20):
        kit.clock.advance(0.5)
        await _both(kit, step, cpu=step * 0.5)
    last = kit.clock.now()
    for heard, rounds in (((1,), 20), ((0, 1), 70), ((0,), 20)):
        for _ in range(rounds):
            kit.clock.advance(0.5)
            for number in heard:
                kit.gateway.hangs.observe(_stuck_beat(number, last, kit.clock.now()))
    for number in range(2):
        await kit.beat(f"m{number}", _stuck(number, last))
    await kit.gateway.hangs.tick()
    await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_HANG
    assert incident.alerts[0].evidence["silent_s"] > 30


async def test_a_clock_that_was_set_forward_and_back_excuses_no_hang(kit: Kit) -> None:
    """The heartbeat of an hour ahead looks late. Time until then is not excused once the clock is right again."""
    await kit.running_job()
    for step in range(1, 20):
        kit.clock.advance(0.5)
        await _both(kit, step, cpu=step * 0.5)
    last = kit.clock.now()
    for number in range(2):
        kit.gateway.hangs.observe(_stuck_beat(number, last, last + 3600))
    for _ in range(60):
        kit.clock.advance(0.5)
        for number in range(2):
            await kit.beat(f"m{number}", _stuck(number, last))
        await kit.gateway.hangs.tick()
        await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_HANG


async def test_slow_first_step_is_no_hang(kit: Kit) -> None:
    """Before the first step of an epoch a job may be silent for long."""
    await kit.running_job()
    for _ in range(60):
        kit.clock.advance(1)
        await _both(kit, 0, cpu=0.0)
        await kit.gateway.hangs.tick()
    assert not kit.incidents()


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


async def _pass(kit: Kit, seconds: float, speaking: tuple[str, ...], dead: str = "") -> None:
    """Time passes in steps of 0.2 s; some machines send heartbeats."""
    kit.prober.dead = {dead} if dead else set()
    for _ in range(round(seconds / 0.2)):
        kit.clock.advance(0.2)
        for name in speaking:
            await kit.beat(name)
        await kit.gateway.silent.tick()
    await kit.settled()


async def _both(kit: Kit, step: int, cpu: float, stopped: int | None = None) -> None:
    """Heartbeats of both machines of the job; ``step_at`` is now while the step is new."""
    at = kit.clock.now() if stopped is None else kit.clock.now() - _silence(kit)
    if step == 0:
        at = kit.ledger.epochs(JOB)[0].opened_at
    for number in range(2):
        ranks = [
            rank(r, step, at, cpu_s=cpu, process_state="T" if r == stopped else "S")
            for r in (2 * number, 2 * number + 1)
        ]
        await kit.beat(f"m{number}", ranks)


def _silence(kit: Kit) -> float:
    """Seconds since the last progress of :func:`_both` (19 rounds of 0.5 s after the job began)."""
    return kit.clock.now() - (kit.ledger.epochs(JOB)[0].opened_at + 19 * 0.5)
