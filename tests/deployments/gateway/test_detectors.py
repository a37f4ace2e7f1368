"""Detectors of faults that only the whole job shows: pace, stragglers, switches, clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.models.agent import Heartbeat, JobOnMachine, RankPhase, RankState, StepMark
from holdfast.models.alert import AlertKind
from holdfast.models.job import JobState
from holdfast.testing.gateway_kit import JOB, Kit


def seen(kit: Kit, kind: AlertKind) -> list[dict[str, Any]]:
    """Evidence of the recorded alerts of a kind."""
    return [alert.evidence for alert in kit.ledger.alerts() if alert.kind is kind]


class Runner:
    """A job that makes steps: heartbeats of the machine of rank 0, and rounds of the detectors."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.step = 0
        self.mfu: float | None = None
        self.phases: Callable[[int], dict[str, float]] = lambda rank: {}

    async def steps(self, count: int, seconds: float, *, stall_s: float = 0.0, epoch: int = 1) -> None:
        for _ in range(count):
            self.step += 1
            self.kit.clock.advance(seconds)
            now = self.kit.clock.now()
            mark = StepMark(step=self.step, at=now, s=seconds, stall_s=stall_s)
            for machine, ranks in (("m0", (0, 1)), ("m1", (2, 3))):
                states = tuple(self.state(rank, now, seconds) for rank in ranks)
                run = JobOnMachine(
                    job=JOB, epoch=epoch, ranks=states, marks=(mark,) if machine == "m0" else ()
                )
                self.kit.gateway.observe(Heartbeat(machine=machine, incarnation="i1", at=now, jobs=(run,)))

    def state(self, rank: int, now: float, seconds: float) -> RankState:
        return RankState(
            rank=rank,
            pid=rank + 1,
            phase=RankPhase.RUNNING,
            step=self.step,
            steps_done=self.step,
            step_at=now,
            step_s=seconds,
            mfu=self.mfu,
            phases=self.phases(rank),
        )

    async def judge(self) -> None:
        await self.kit.gateway.throughput.tick()
        await self.kit.settled()


@pytest.fixture
async def runner(kit: Kit) -> Runner:
    await kit.running_job()
    return Runner(kit)


async def slow_down(runner: Runner, seconds: float, *, minutes: float) -> None:
    """Steps of ``seconds`` for so long, judged as often as the gateway does."""
    for _ in range(int(minutes * 6)):
        await runner.steps(max(1, round(10 / seconds)), seconds)
        await runner.judge()


async def test_a_job_that_becomes_lastingly_slow_is_reported_once(runner: Runner) -> None:
    """Half as fast, for five minutes."""
    await runner.steps(200, 1.0)
    await runner.judge()
    await slow_down(runner, 2.0, minutes=4)
    assert seen(runner.kit, AlertKind.THROUGHPUT_DECLINE) == []
    await slow_down(runner, 2.0, minutes=4)
    [evidence] = seen(runner.kit, AlertKind.THROUGHPUT_DECLINE)
    assert (evidence["median"], evidence["value"]) == (1.0, 2.0)


async def test_a_job_that_stays_slow_is_reported_again_after_an_hour(runner: Runner) -> None:
    """The first report may have led to a wait; nothing else would bring it up again."""
    await runner.steps(200, 1.0)
    await slow_down(runner, 2.0, minutes=8)
    assert len(seen(runner.kit, AlertKind.THROUGHPUT_DECLINE)) == 1
    runner.kit.clock.advance(3600)
    await slow_down(runner, 2.0, minutes=1)
    assert len(seen(runner.kit, AlertKind.THROUGHPUT_DECLINE)) == 2


async def test_a_slow_minute_is_not_reported(runner: Runner) -> None:
    """It passes, and the baseline stays what it was."""
    await runner.steps(200, 1.0)
    for _ in range(4):
        await slow_down(runner, 2.0, minutes=1)
        await slow_down(runner, 1.0, minutes=1)
    assert seen(runner.kit, AlertKind.THROUGHPUT_DECLINE) == []


async def test_stalls_of_checkpoints_are_no_slowness(runner: Runner) -> None:
    """They have figures of their own."""
    await runner.steps(200, 1.0)
    for _ in range(60):
        await runner.steps(5, 2.0, stall_s=1.0)
        await runner.judge()
    assert seen(runner.kit, AlertKind.THROUGHPUT_DECLINE) == []


async def test_utilisation_that_falls_is_reported(runner: Runner) -> None:
    """Where the script reports it, whatever the step time."""
    runner.mfu = 0.4
    await runner.steps(200, 1.0)
    runner.mfu = 0.2
    await slow_down(runner, 1.0, minutes=7)
    [evidence] = seen(runner.kit, AlertKind.MFU_DECLINE)
    assert evidence["factor"] == 2.0


async def test_another_code_version_has_another_pace(runner: Runner) -> None:
    """A larger model is slower by right."""
    await runner.steps(200, 1.0)
    runner.kit.ledger.add_version(JOB, "v2", "key", "larger")
    runner.kit.ledger.set_job(JOB, code_version="v2")
    await runner.kit.gateway.site.refresh()
    await slow_down(runner, 2.0, minutes=8)
    assert seen(runner.kit, AlertKind.THROUGHPUT_DECLINE) == []


async def test_a_job_at_rest_is_not_judged(runner: Runner) -> None:
    """Paused: no steps, no pace."""
    await runner.steps(200, 1.0)
    await slow_down(runner, 2.0, minutes=3)
    runner.kit.ledger.set_job(JOB, state=JobState.PAUSED)
    await runner.kit.gateway.site.refresh()
    runner.kit.clock.advance(3600)
    await runner.judge()
    assert seen(runner.kit, AlertKind.THROUGHPUT_DECLINE) == []


async def test_a_straggler_is_reported_after_five_rounds(runner: Runner) -> None:
    """The same rank and phase each time; not while it changes."""
    kit = runner.kit
    slow = 3

    def phases(rank: int) -> dict[str, float]:
        return {"forward": 0.5 if rank == slow else 0.2, "checkpoint": 5.0 if rank == 0 else 0.1}

    runner.phases = phases
    for number in range(8):
        slow = number % 2 + 2
        await runner.steps(2, 1.0)
        await kit.gateway.stragglers.tick()
    assert seen(kit, AlertKind.STRAGGLER) == []
    slow = 3
    for _ in range(8):
        await runner.steps(2, 1.0)
        await kit.gateway.stragglers.tick()
    await kit.settled()
    [evidence] = seen(kit, AlertKind.STRAGGLER)
    assert (evidence["phase"], evidence["factor"], evidence["rounds"]) == ("forward", 2.5, 5)


async def network_fault(kit: Kit, machine: str) -> None:
    await kit.alert(
        kind="nic_down",
        job=None,
        machine=machine,
        incarnation="i1",
        fingerprint=f"nic:{machine}:{kit.clock.now()}",
        evidence={"device": "mlx5_0/1"},
    )


async def test_a_switch_is_named_at_the_second_round(kit: Kit) -> None:
    """Both of its machines lost their network, and still had in the next round."""
    limits = kit.gateway.switches._limits.model_copy(update={"switches": {"leaf-1": ("m0", "m1")}})
    kit.gateway.switches._limits = limits
    await kit.running_job()
    switches = kit.gateway.switches
    await network_fault(kit, "m0")
    await switches.tick()
    assert seen(kit, AlertKind.SWITCH_DOWN) == []
    await network_fault(kit, "m1")
    await switches.tick()
    assert seen(kit, AlertKind.SWITCH_DOWN) == []
    kit.clock.advance(30)
    await switches.tick()
    await kit.settled()
    [evidence] = seen(kit, AlertKind.SWITCH_DOWN)
    assert (evidence["switch"], evidence["machines"]) == ("leaf-1", ["m0", "m1"])


async def test_machines_that_came_back_do_not_accuse_the_switch(kit: Kit) -> None:
    """One round is a flap."""
    kit.gateway.switches._limits = kit.gateway.switches._limits.model_copy(
        update={"switches": {"leaf-1": ("m0", "m1")}}
    )
    await kit.running_job()
    for machine in ("m0", "m1"):
        await network_fault(kit, machine)
    await kit.gateway.switches.tick()
    kit.clock.advance(90)
    await kit.gateway.switches.tick()
    await kit.gateway.switches.tick()
    assert seen(kit, AlertKind.SWITCH_DOWN) == []


async def test_a_clock_that_is_off_is_reported_once(kit: Kit) -> None:
    """By the smallest difference: a late heartbeat alone is no evidence."""
    await kit.running_job()
    for number in range(40):
        now = kit.clock.now()
        late = 30.0 if number % 4 else 0.1
        kit.gateway.observe(Heartbeat(machine="m0", incarnation="i1", at=now - late))
        kit.gateway.observe(Heartbeat(machine="m1", incarnation="i1", at=now + 7.0))
        kit.clock.advance(0.5)
    for _ in range(3):
        await kit.gateway.clocks.tick()
    await kit.settled()
    [evidence] = seen(kit, AlertKind.CLOCK_SKEW)
    assert evidence["value"] == 7.0
    assert not kit.incidents()


async def test_detectors_remember_only_what_is_there(kit: Kit) -> None:
    """Machines and jobs that are gone are forgotten."""
    await kit.running_job()
    for number in range(50):
        kit.gateway.clocks.observe(Heartbeat(machine=f"old{number}", incarnation="i", at=0.0))
    await kit.gateway.clocks.tick()
    assert set(kit.gateway.clocks._seen) <= set(kit.gateway.site.fleet.machines)


@pytest.mark.parametrize("children", [0.0, 0.9])
async def test_a_rank_waits_for_what_it_started(runner: Runner, children: float) -> None:
    """Its agent looks at that once a step is late: what it used until then is no work of this pause."""
    kit = runner.kit
    await runner.steps(20, 0.1)
    stopped_at = kit.clock.now()
    for beat in range(16):
        kit.clock.advance(0.5)
        for machine, ranks in (("m0", (0, 1)), ("m1", (2, 3))):
            states = [runner.state(rank, stopped_at, 0.1) for rank in ranks]
            if beat > 2:
                looked = {"children_cpu_s": 500.0 + children * beat / 2, "io_bytes": 9}
                states = [each.model_copy(update=looked) for each in states]
            run = JobOnMachine(job=JOB, epoch=1, ranks=tuple(states))
            beats = Heartbeat(machine=machine, incarnation="i1", at=kit.clock.now(), jobs=(run,))
            kit.gateway.observe(beats)
        await kit.gateway.hangs.tick()
    await kit.settled()
    assert bool(seen(kit, AlertKind.HANG)) is (children == 0.0)
