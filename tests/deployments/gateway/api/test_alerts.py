from __future__ import annotations

from typing import Any

import pytest

from holdfast.deployments.gateway.fleet.spares import Spares
from holdfast.deployments.gateway.intake.outcome import What
from holdfast.errors import UnavailableError
from holdfast.models.alert import Alert, AlertKind, IncidentClass, IncidentState
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch


async def test_killed_rank_opens_an_incident_and_starts_its_playbook_once(kit: Kit) -> None:
    """An alert becomes an incident in the ledger, then one run with the incident's key."""
    await kit.running_job()
    answer = await kit.crash(rank=1)
    assert answer["outcome"] == "opened"
    (incident,) = kit.incidents()
    assert incident.id == answer["incident"] == f"{JOB}-1"
    assert incident.incident_class is IncidentClass.JOB_CRASH
    assert (incident.machine, incident.rank, incident.epoch) == ("m0", 1, 1)
    assert kit.runs.created == [f"{JOB}-1#1"]
    assert incident.flow_run_id == f"{JOB}-1#1"
    assert [alert.outcome for alert in kit.ledger.alerts(incident.id)] == ["opened"]


async def test_repeated_alert_opens_nothing_and_is_counted(kit: Kit) -> None:
    """The same signal is a duplicate while its incident is open and shortly after."""
    await kit.running_job()
    await kit.crash()
    assert (await kit.crash())["outcome"] == "duplicate"
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    assert (await kit.crash())["outcome"] == "duplicate"
    assert len(kit.incidents()) == 1
    assert kit.metric("alerts_total", kind="rank_exit", outcome="duplicate") == 2


@pytest.mark.parametrize("kind", ["gpu_lost", "mount_readonly"])
async def test_an_alert_from_a_clock_that_is_ahead_is_of_the_machines_present_life_alone(
    kit: Kit, kind: str
) -> None:
    """It was newer than the machine's next registration, so the machine was evicted again once it was repaired."""
    await kit.running_job()
    sent = {"kind": kind, "machine": "m1", "at": kit.clock.now() + 3600}
    assert (await kit.post("/v1/alerts", sent))["outcome"] == "opened"
    received_at = kit.clock.now()
    kit.clock.advance(1)
    assert (await kit.post("/v1/alerts", sent))["outcome"] == "duplicate"
    assert [alert.at for alert in kit.incidents()[0].alerts] == [received_at]


async def test_a_person_who_asks_again_after_the_incident_or_for_another_class_is_answered(kit: Kit) -> None:
    """Once is enough while the incident is open, and a request that is sent twice stays one."""
    await kit.running_job()

    def asked(incident_class: str = "job_hang", at: float | None = None) -> dict[str, Any]:
        evidence = {"class": incident_class}
        return {"kind": "manual", "job": JOB, "at": at or kit.clock.now(), "evidence": evidence}

    first = asked()
    assert (await kit.post("/v1/alerts", first))["outcome"] == "opened"
    kit.clock.advance(1)
    assert (await kit.post("/v1/alerts", asked()))["outcome"] == "duplicate"
    other = await kit.post("/v1/alerts", asked("silent_corruption"))
    assert (other["outcome"], other["incident"]) == ("waits", f"{JOB}-2")
    await kit.tick()
    for incident in (f"{JOB}-1", f"{JOB}-2"):
        kit.close_incident(incident)
    await kit.tick()
    kit.clock.advance(1)
    assert (await kit.post("/v1/alerts", first))["outcome"] == "duplicate"
    again = await kit.post("/v1/alerts", asked())
    assert (again["outcome"], again["incident"]) == ("opened", f"{JOB}-3")


async def test_an_alert_that_the_ledger_did_not_take_is_no_duplicate_when_it_is_sent_again(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was locked when it was to join: the sender is asked to send it again, and then it joins."""
    await kit.running_job()
    await kit.crash()

    def locked(*_: Any) -> None:
        raise UnavailableError("locked")

    with monkeypatch.context() as patched:
        patched.setattr(kit.ledger, "join", locked)
        await kit.crash(rank=2, status=503)
    assert (await kit.crash(rank=2))["outcome"] == "joined"
    assert {alert.rank for alert in kit.incidents()[0].alerts} == {0, 2}


async def test_an_alert_whose_incident_is_closed_just_then_is_looked_at_by_itself(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of the new epoch dies in the very moment in which the incident is closed: it opens its own."""
    await kit.running_job()
    await kit.crash()
    start_epoch(kit.ledger, JOB)
    join = kit.ledger.join

    def closed_before(incident_id: str, alerts: Any) -> None:
        kit.close_incident(incident_id)
        join(incident_id, alerts)

    monkeypatch.setattr(kit.ledger, "join", closed_before)
    answer = await kit.crash(epoch=2)
    assert (answer["outcome"], answer["incident"]) == ("opened", f"{JOB}-2")


async def test_alerts_that_settle_outlive_a_ledger_that_is_away(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision could not be written: the alerts are decided again."""
    await kit.running_job()
    await kit.crash(cascade=True)
    assert kit.gateway.correlator.settles

    def locked(*_: Any, **__: Any) -> None:
        raise UnavailableError("locked")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.deployments.gateway.intake.opening.give_way", locked)
        await kit.crash(rank=2, status=503)
    assert kit.gateway.correlator.settles
    kit.clock.advance(2)
    await kit.gateway.correlator.settle()
    assert {alert.rank for alert in kit.incidents()[0].alerts} == {0, 2}


async def test_alerts_of_the_broken_epoch_join_the_open_incident(kit: Kit) -> None:
    """One fault with many signals is one incident with one run."""
    await kit.running_job()
    await kit.crash(rank=0)
    answer = await kit.crash(rank=1, cascade=True)
    assert (answer["outcome"], answer["incident"]) == ("joined", f"{JOB}-1")
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    start_epoch(kit.ledger, JOB)
    assert (await kit.crash(rank=2, cascade=True))["outcome"] == "joined"
    assert len(kit.incidents()[0].alerts) == 3
    assert len(kit.runs.created) == 1


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (JobState.PAUSED, "kept"),  # a rank that dies while it is held: when the hold ends
        (JobState.STOPPED, "ignored"),
        (JobState.DONE, "ignored"),
        (JobState.FAILED, "ignored"),
    ],
)
async def test_ranks_of_a_job_at_rest_open_nothing(kit: Kit, state: JobState, outcome: str) -> None:
    """Ranks that end because the job was stopped are no incident."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=state)
    assert (await kit.crash())["outcome"] == outcome
    assert not kit.incidents()


async def test_job_that_waits_for_a_human_opens_nothing(kit: Kit) -> None:
    """After the last attempt further exits are noise."""
    await kit.running_job()
    await kit.crash()
    kit.ledger.set_job(JOB, state=JobState.RECOVERING)
    kit.ledger.set_incident(f"{JOB}-1", state=IncidentState.NEEDS_HUMAN)
    await kit.tick()
    assert (await kit.crash(rank=1))["outcome"] == "ignored"


async def test_cascading_failures_wait_for_their_root(kit: Kit) -> None:
    """Ranks that only lost a peer are held back; the root's report decides."""
    await kit.running_job()
    assert (await kit.crash(rank=0, cascade=True))["outcome"] == "settling"
    assert not kit.incidents()
    answer = await kit.crash(rank=3)
    assert answer["outcome"] == "opened"
    (incident,) = kit.incidents()
    assert (incident.machine, incident.rank, len(incident.alerts)) == ("m1", 3, 2)


async def test_cascading_failures_without_a_root_become_a_crash_when_time_is_up(kit: Kit) -> None:
    """No root came within the settle window: a crash without a culprit."""
    await kit.running_job()
    await kit.crash(rank=0, cascade=True)
    await kit.gateway.correlator.settle()
    assert not kit.incidents()
    kit.clock.advance(kit.gateway.site.policy.classify.settle_s)
    await kit.gateway.correlator.settle()
    await kit.settled()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_CRASH
    assert incident.machine is None
    assert kit.runs.created == [f"{JOB}-1#1"]


async def test_after_a_takeover_late_cascading_failures_wait_for_their_late_root(kit: Kit) -> None:
    """Reports that ranks made while no gateway led arrive in any order."""
    await kit.running_job()
    died_at = kit.clock.now()
    kit.clock.advance(8.0)
    await kit.gateway.resume()
    await kit.crash(rank=0, cascade=True, at=died_at)
    kit.clock.advance(2.0)
    await kit.gateway.correlator.settle()
    assert not kit.incidents()
    assert (await kit.crash(rank=3, at=died_at))["outcome"] == "opened"
    assert kit.incidents()[0].rank == 3


async def test_cascading_failures_make_the_gateway_look_for_a_dead_machine(kit: Kit) -> None:
    """Peers lost a connection: all agents are probed at once, and the dead one is the fault."""
    await kit.running_job()
    kit.prober.dead = {"m1"}
    await kit.crash(rank=0, cascade=True)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    assert incident.machine == "m1"
    assert set(kit.prober.asked) == {"m0", "m1"}


async def test_lost_gpu_opens_a_machine_fault_at_once(kit: Kit) -> None:
    """Xid 79 needs no diagnosis."""
    await kit.running_job()
    await kit.alert(kind="xid", machine="m1", incarnation="i1", evidence={"xid": 79})
    (incident,) = kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m1")


async def test_xid_of_the_application_alone_opens_nothing(kit: Kit) -> None:
    """Xid 13 is the program's own; and it does not hide an Xid 79 that follows."""
    await kit.running_job()
    answer = await kit.alert(kind="xid", machine="m1", incarnation="i1", evidence={"xid": 13})
    assert answer["outcome"] == "ignored"
    assert not kit.incidents()
    await kit.alert(kind="xid", machine="m1", incarnation="i1", evidence={"xid": 79})
    assert len(kit.incidents()) == 1


async def test_network_fault_counts_the_second_time(kit: Kit) -> None:
    """NICs come back alone: the second failure within the window is a machine fault."""
    await kit.running_job()
    fault: dict[str, Any] = {
        "kind": "host_fault",
        "machine": "m1",
        "incarnation": "i1",
        "evidence": {"check": "nic_down"},
    }
    assert (await kit.alert(**fault))["outcome"] == "ignored"
    kit.clock.advance(20)
    assert (await kit.alert(**fault))["outcome"] == "opened"
    assert kit.incidents()[0].machine == "m1"


async def test_bad_standby_leaves_the_pool_without_an_incident(kit: Kit) -> None:
    """A standby whose GPU is lost is cordoned; nothing was interrupted."""
    await kit.running_job()
    answer = await kit.alert(kind="xid", job=None, machine="m2", incarnation="i1", evidence={"xid": 79})
    assert answer["outcome"] == "cordoned"
    machine = kit.ledger.machine("m2")
    assert machine.state is MachineState.CORDONED
    assert "Xid 79" in (machine.cordon_reason or "")
    assert not kit.incidents()
    assert kit.metric("standby_cordons_total", kind="xid") == 1
    await kit.beat("m2", status=409)


async def test_a_standby_that_restarted_or_serves_a_job_by_now_stays(kit: Kit) -> None:
    """Between the look at it and the act it registered again, or a job took it."""
    await kit.running_job(standbys=2)
    spares = Spares(kit.gateway.site)
    looked_at = {name: kit.ledger.machine(name) for name in ("m2", "m3")}
    kit.ledger.set_machine("m2", incarnation="i2")
    kit.ledger.set_machine("m3", state=MachineState.ACTIVE, job="other")
    for name, machine in looked_at.items():
        fault = Alert(kind=AlertKind.XID, machine=name, incarnation="i1", at=1.0, evidence={"xid": 79})
        assert (await spares.accept(fault, machine)).outcome is What.IGNORED
    assert kit.ledger.machine("m2").state is MachineState.STANDBY
    assert kit.ledger.machine("m3").state is MachineState.ACTIVE


async def test_machine_fault_that_joined_is_not_forgotten(kit: Kit) -> None:
    """A second machine that failed while the first was replaced gets its own incident afterwards."""
    await kit.running_job(standbys=3)
    await kit.alert(kind="xid", machine="m0", incarnation="i1", evidence={"xid": 79})
    await kit.tick(0)
    await kit.alert(kind="xid", machine="m1", incarnation="i1", evidence={"xid": 79})
    assert len(kit.incidents()) == 1
    kit.ledger.set_machine("m0", state=MachineState.CORDONED, job=None)
    (spare,) = kit.ledger.claim_standbys(JOB, 1)
    kit.ledger.set_job(JOB, machines=[spare.name, "m1"])
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-1")
    await kit.tick()
    second = kit.incidents()[1]
    assert (second.machine, second.epoch, second.incident_class) == ("m1", 2, IncidentClass.MACHINE_FAULT)
    assert kit.runs.created == [f"{JOB}-1#1", f"{JOB}-2#1"]


async def test_machine_fault_that_joined_is_found_though_no_gateway_saw_its_incident_end(kit: Kit) -> None:
    """It was killed before its playbook closed the incident; the next one finds the fault, and opens one incident."""
    await kit.running_job(standbys=3)
    await kit.alert(kind="xid", machine="m0", incarnation="i1", evidence={"xid": 79})
    await kit.alert(kind="xid", machine="m1", incarnation="i1", evidence={"xid": 79})
    kit.ledger.set_machine("m0", state=MachineState.CORDONED, job=None)
    (spare,) = kit.ledger.claim_standbys(JOB, 1)
    kit.ledger.set_job(JOB, machines=[spare.name, "m1"])
    start_epoch(kit.ledger, JOB)
    kit.close_incident(f"{JOB}-1")
    for _ in range(2):
        await kit.restart()
        assert [each.machine for each in kit.incidents()] == ["m0", "m1"]


async def test_storm_keeps_memory_and_ledger_bounded(kit: Kit) -> None:
    """Thousands of signals of one fault are one incident with at most so much evidence, and one run."""
    await kit.running_job(machines=4, ranks=2)
    for number in range(3000):
        await kit.gateway.correlator.accept_all([_signal(kit, f"fp-{number % 2500}", cascade=number != 0)])
    await kit.settled()
    (incident,) = kit.incidents()
    assert kit.runs.created == [f"{JOB}-1#1"]
    assert len(incident.alerts) <= 256
    assert len(kit.ledger.alerts(limit=5000)) <= 300
    assert len(kit.gateway.correlator.memory) <= 8192
    assert not kit.gateway.correlator.settles


async def test_storm_of_cascading_failures_keeps_room_for_the_root(kit: Kit) -> None:
    """The root cause is found behind more cascading failures than an incident keeps."""
    await kit.running_job(machines=4, ranks=2)
    for number in range(600):
        await kit.gateway.correlator.accept_all([_signal(kit, f"fp-{number}", cascade=True)])
    await kit.crash(rank=5)
    (incident,) = kit.incidents()
    assert incident.rank == 5
    assert incident.machine == "m2"


def _signal(kit: Kit, fingerprint: str, *, cascade: bool) -> Alert:
    evidence = {"cascade": True} if cascade else {"signal": "SIGKILL"}
    return Alert(
        kind=AlertKind.RANK_EXIT,
        job=JOB,
        machine="m0",
        rank=0,
        epoch=1,
        at=kit.clock.now(),
        fingerprint=fingerprint,
        evidence=evidence,
    )


@pytest.mark.parametrize("skew_s", [-600.0, 600.0])
async def test_a_wrong_clock_does_not_delay_a_crash_of_cascading_failures(kit: Kit, skew_s: float) -> None:
    """The settle window counts from the arrival: a root cause within it still counts, and none after it."""
    await kit.running_job()
    at = kit.clock.now() + skew_s
    echo = {"rank": 0, "machine": "m0", "incarnation": "i1", "epoch": 1, "evidence": {"cascade": True}}
    assert (await kit.alert(at=at, **echo))["outcome"] == "settling"
    kit.clock.advance(1.0)
    await kit.gateway.correlator.settle()
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_CRASH


async def test_a_port_that_fails_twice_counts_on_a_machine_whose_clock_is_behind(kit: Kit) -> None:
    """Within the window by when it was heard."""
    await kit.running_job()
    for _ in range(2):
        port = {"machine": "m1", "incarnation": "i1", "evidence": {"device": "mlx5_0"}}
        await kit.alert(kind="nic_down", at=kit.clock.now() - 600.0, **port)
        kit.clock.advance(100.0)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.NETWORK_FAULT
