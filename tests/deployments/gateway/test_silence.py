"""Machines whose heartbeats come every ten seconds, as in a large fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.deployments.gateway.detectors.heartbeats import SilentMachines
from holdfast.models.alert import IncidentClass
from holdfast.models.job import JobState
from holdfast.models.machine import MachineState
from holdfast.testing.gateway_kit import JOB, Kit

HEARTBEAT_S = 10.0


class Watched:
    """One machine falls silent while the others beat; the detector looks each half second."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        site = kit.gateway.site
        site.settings = kit.settings.model_copy(update={"heartbeat_s": HEARTBEAT_S})
        self.silent = SilentMachines(site, kit.prober, kit.gateway.correlator)

    async def until(self, seconds: float, beats: tuple[str, ...] = ("m0", "m1")) -> float | None:
        """Seconds from the silent machine's last heartbeat to an incident; None: none within ``seconds``."""
        for machine in beats:
            await self.kit.beat(machine)
        begun = self.kit.clock.now()
        while (passed := self.kit.clock.now() - begun) < seconds:
            self.kit.clock.advance(0.5)
            if passed % HEARTBEAT_S < 0.5:
                await self.kit.beat("m0")
            await self.silent.tick()
            await self.kit.settled()
            if self.kit.incidents():
                return self.kit.clock.now() - begun
        return None


@pytest.fixture
async def watched(kit: Kit, tmp_path: Path) -> Watched:
    await kit.running_job()
    return Watched(kit)


async def test_a_dead_machine_is_noticed_within_two_heartbeats(watched: Watched) -> None:
    """Its agent refuses connections, so the probe is sure."""
    watched.kit.prober.dead.add("m1")
    noticed_s = await watched.until(60)
    assert noticed_s is not None
    assert noticed_s <= 2 * HEARTBEAT_S
    (incident,) = watched.kit.incidents()
    assert (incident.incident_class, incident.machine) == (IncidentClass.MACHINE_FAULT, "m1")


async def test_one_lost_heartbeat_costs_no_machine(watched: Watched) -> None:
    """The control: an agent that answers the probe lives, however long the gateway does not hear of it."""
    assert await watched.until(60) is None
    assert "m1" in watched.kit.prober.asked


async def test_a_clock_that_is_set_back_hides_no_silence(watched: Watched) -> None:
    """Else a machine without power would not be missed for as long as the clock was set back."""
    kit, fleet = watched.kit, watched.kit.gateway.site.fleet
    await kit.beat("m1")
    await watched.silent.tick()
    kit.clock.set(kit.clock.now() - 3600.0)
    await watched.silent.tick()
    kit.clock.advance(30.0)
    assert fleet.silent_s("m1", kit.clock.now()) == 30.0


async def test_a_machine_that_is_merely_slow_gets_more_time(watched: Watched) -> None:
    """No answer in time is less than a refused connection."""
    watched.kit.prober.slow.add("m1")
    assert await watched.until(3 * HEARTBEAT_S) is None


async def test_a_silent_machine_is_given_up_while_others_answer(watched: Watched) -> None:
    """After the lease that it was granted with its last heartbeat, not before."""
    watched.kit.prober.slow.add("m1")
    noticed_s = await watched.until(120)
    assert noticed_s is not None
    assert noticed_s > watched.kit.gateway.site.lease_s


@pytest.mark.parametrize(("late", "after_s"), [(False, 5.0), (True, 20.0)])
@pytest.mark.parametrize("state", [MachineState.ACTIVE, MachineState.STANDBY])
async def test_on_slow_hosts_a_silent_machine_has_as_long_as_the_longest_lease(
    kit: Kit, state: MachineState, late: bool, after_s: float
) -> None:
    """Others were silent a moment ago and are heard again; the control: all others were heard in time."""
    await kit.running_job()
    others = ["m3", "m4", "m5", "m0"]
    for name in others[:3]:
        await kit.register(name)
    await kit.gateway.site.refresh()
    await kit.gateway.silent.tick()
    kit.prober.slow.add(silent := "m1" if state is MachineState.ACTIVE else "m2")
    assert kit.ledger.machine(silent).state is state
    if late:
        kit.clock.advance(2.0)
    begun = kit.clock.now() - 2.0 * late
    for _ in range(60):
        for name in {*others, "m1", "m2"} - {silent}:
            await kit.beat(name)
        await kit.gateway.silent.tick()
        await kit.settled()
        if kit.incidents() or kit.ledger.machine(silent).state is MachineState.GONE:
            break
        kit.clock.advance(0.5)
    assert after_s < kit.clock.now() - begun <= after_s + 3.0


@pytest.mark.parametrize("state", [MachineState.ACTIVE, MachineState.STANDBY])
async def test_on_slow_hosts_a_dead_machine_goes_at_once(kit: Kit, state: MachineState) -> None:
    """Nothing listens at its address."""
    await kit.running_job()
    for name in ("m3", "m4", "m5"):
        await kit.register(name)
    await kit.gateway.site.refresh()
    await kit.gateway.silent.tick()
    kit.prober.dead.add(silent := "m1" if state is MachineState.ACTIVE else "m2")
    kit.clock.advance(2.0)
    for name in {"m0", "m1", "m2", "m3", "m4", "m5"} - {silent}:
        await kit.beat(name)
    await kit.gateway.silent.tick()
    await kit.settled()
    assert kit.incidents() or kit.ledger.machine(silent).state is MachineState.GONE


async def test_a_gateway_that_receives_nothing_accuses_no_machine(watched: Watched) -> None:
    """It is its own network: the control to the test before."""
    kit = watched.kit
    kit.prober.slow |= {"m0", "m1", "m2"}
    await kit.beat("m0")
    for _ in range(100):
        kit.clock.advance(2.0)
        await watched.silent.tick()
    await kit.settled()
    assert kit.incidents() == []
    assert kit.metric("gateway_alone") == 1
    await kit.beat("m0")
    await watched.silent.tick()
    assert kit.metric("gateway_alone") == 0


async def test_after_a_cut_machines_may_come_back_one_after_the_other(watched: Watched) -> None:
    """The first that is heard does not make the others guilty; one that stays silent for a lease more is."""
    kit = watched.kit
    kit.prober.slow |= {"m0", "m1", "m2"}
    for _ in range(100):
        kit.clock.advance(2.0)
        await watched.silent.tick()
    kit.prober.slow -= {"m0", "m2"}
    assert (await watched.until(kit.gateway.site.lease_s - 1, beats=("m0",))) is None
    assert await watched.until(kit.gateway.site.lease_s, beats=("m0",)) is not None


async def test_an_answered_probe_counts_as_a_sign_of_life(watched: Watched) -> None:
    """A machine whose heartbeats do not arrive, but which answered a moment ago, still has its whole lease."""
    assert await watched.until(100) is None
    watched.kit.prober.slow.add("m1")
    noticed_s = await watched.until(100, beats=("m0",))
    assert noticed_s is not None
    assert noticed_s > watched.kit.gateway.site.lease_s - watched.kit.gateway.site.window_s


async def test_heartbeats_are_answered_with_a_lease_and_witnesses(kit: Kit) -> None:
    """Three others, far apart in the order of names; none for a machine that is on its way out."""
    for number in range(12):
        await kit.register(f"m{number:02}")
    await kit.gateway.site.refresh()
    answer = await kit.beat("m00")
    assert answer["lease_s"] == kit.gateway.site.lease_s
    assert answer["renews"]
    assert [each["name"] for each in answer["witnesses"]] == ["m03", "m06", "m09"]
    kit.ledger.set_machine("m00", state=MachineState.DRAINING)
    await kit.gateway.site.refresh()
    assert not (await kit.beat("m00"))["renews"]


@pytest.mark.parametrize("machines", [1, 2, 3, 4, 5])
async def test_no_machine_is_its_own_witness(kit: Kit, machines: int) -> None:
    """Nor asked twice."""
    for number in range(machines):
        await kit.register(f"m{number}")
    await kit.gateway.site.refresh()
    for number in range(machines):
        names = [one["name"] for one in (await kit.beat(f"m{number}"))["witnesses"]]
        assert f"m{number}" not in names
        assert len(set(names)) == len(names) == min(3, machines - 1)


async def test_a_machine_that_stays_dead_is_logged_once_an_hour(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """A round of the detector comes twice a second; the log has the changes only."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=JobState.FAILED)
    await kit.gateway.site.refresh()
    watched = Watched(kit)
    kit.prober.dead.add("m1")
    caplog.set_level("WARNING", "holdfast.gateway")

    def warnings() -> int:
        return sum("machine m1: no heartbeat" in record.message for record in caplog.records)

    await watched.until(600.0)
    assert warnings() == 1
    kit.clock.advance(3600.0)
    await watched.until(120.0, beats=("m0",))
    assert warnings() == 2


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.STOPPED])
async def test_a_dead_machine_of_an_ended_job_is_gone_after_a_while(kit: Kit, state: JobState) -> None:
    """No playbook recovers the job and evicts it; the next start takes a standby, and it comes back as one."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=state)
    await kit.gateway.site.refresh()
    watched = Watched(kit)
    kit.prober.dead.add("m1")
    await watched.until(kit.gateway.site.policy.gateway.gone_after_s - 10.0)
    assert kit.ledger.machine("m1").state is MachineState.ACTIVE
    await watched.until(30.0, beats=("m0",))
    gone = kit.ledger.machine("m1")
    assert (gone.state, gone.job) == (MachineState.GONE, None)
    assert JOB in (gone.cordon_reason or "")
    assert kit.ledger.machine("m0").state is MachineState.ACTIVE
    assert kit.incidents() == []
    await kit.register("m1", "later")
    assert kit.ledger.machine("m1").state is MachineState.STANDBY


async def test_dead_machines_of_a_failed_job_are_kept_while_no_machine_answers(kit: Kit) -> None:
    """The control: then it is the gateway that is cut off."""
    await kit.running_job()
    kit.ledger.set_job(JOB, state=JobState.FAILED)
    await kit.gateway.site.refresh()
    site = kit.gateway.site
    silent = SilentMachines(site, kit.prober, kit.gateway.correlator)
    kit.prober.slow.update({"m0", "m1"})
    kit.clock.advance(2 * site.policy.gateway.gone_after_s)
    for _ in range(5):
        await silent.tick()
        kit.clock.advance(1.0)
    assert {kit.ledger.machine(name).state for name in ("m0", "m1")} == {MachineState.ACTIVE}
