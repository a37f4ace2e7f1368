"""Machines and ranks that fall silent: lost, hanging, or excused by what stood still."""

from __future__ import annotations

from holdfast.models.agent import Heartbeat, JobOnMachine, RankState
from holdfast.models.alert import IncidentClass
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit, rank


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


async def test_gateway_that_stood_still_blames_no_machine(kit: Kit) -> None:
    """After a pause of its own the gateway waits a window before it counts silence."""
    await kit.running_job()
    await _pass(kit, 1.0, speaking=("m0", "m1", "m2"))
    kit.clock.advance(30)
    kit.prober.dead = {"m1"}
    await kit.gateway.silent.tick()
    assert not kit.incidents()


async def test_stopped_rank_is_a_hang(kit: Kit) -> None:
    """No step, and one process in state T while the others idle: the vote is for a hang, and names the rank."""
    await kit.running_job()
    await _trained(kit)
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
    last = await _trained(kit)
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
    last = await _trained(kit)
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
    last = await _trained(kit)
    for speaking, rounds in (((1,), 20), ((0, 1), 70), ((0,), 20)):
        for _ in range(rounds):
            kit.clock.advance(0.5)
            for number in speaking:
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
    last = await _trained(kit)
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


async def _trained(kit: Kit) -> float:
    """Both machines do 19 steps; the time after the last one."""
    for step in range(1, 20):
        kit.clock.advance(0.5)
        await _both(kit, step, cpu=step * 0.5)
    return kit.clock.now()


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
