"""A hundred machines under one gateway: real agents in one process, their ranks scripted (benchmarks/fleet)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.fleet.site import RANKS, FleetSite, fleet_site
from holdfast.deployments.worker.environment import client_environment
from holdfast.models.alert import IncidentClass, IncidentState, Verdict
from holdfast.models.checkpoint import Tier
from holdfast.models.job import JobState
from holdfast.models.machine import Machine, MachineState
from holdfast.operations import fence, fleet, launch
from holdfast.operations.context import Context
from holdfast.operations.first_steps import first_steps
from holdfast.tasks import story
from holdfast.tasks.context import context, use
from tests.e2e.waiting import DEADLINE_S, free_ports

MACHINES = 100
LOST_AT_ONCE = 60
POLICY = """\
gateway: {offline_after_s: 0.5}
"""
GROWTH_BYTES = 64 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetSite]:
    """Gateway, S3 and the fleet; playbooks run without Prefect, as they do when that is away."""
    home = tmp_path_factory.mktemp("fleet") / ".holdfast"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "PREFECT_"))]:
            patch.delenv(name)
        with fleet_site(
            home, MACHINES + 2, free_ports(), heartbeat_s=2.0, policy=POLICY, prefect=False
        ) as site:
            for name, value in client_environment(site.settings).items():
                patch.setenv(name, value)
            use(Context(site.settings))
            yield site
            use(None)


@pytest.mark.thorough
async def test_commands_reach_all_machines_and_a_dead_one_is_replaced(large: FleetSite) -> None:
    """Stacks of 800 ranks, all stopped, all started, twice in a row; then a machine dies, and only that one goes."""
    large.submit("commands", MACHINES)
    ctx = context()
    for epoch in (1, 2):
        machines = large.ledger.machines(job="commands")
        stacks = fleet.all_or_raise(
            await fleet.ask(ctx, machines, lambda agent, _: agent.stacks("commands", epoch))  # noqa: B023
        )
        ranks = [dump.rank for dumps in stacks.values() for dump in dumps if dump.thread == "MainThread"]
        assert sorted(ranks) == list(range(MACHINES * RANKS))
        await _all_hold_a_step(ctx, machines)
        large.ledger.set_job("commands", state=JobState.PAUSED)
        fenced = await fence.fence(ctx, machines, "commands", epoch)
        assert (fenced.lost, fenced.silent) == ((), ())
        states = fleet.all_or_raise(await fleet.ask(ctx, machines, lambda agent, _: agent.state()))
        assert not any(state.jobs for state in states.values())
        launched = await launch.launch(ctx, "commands", "test")
        assert (launched.epoch, launched.tier) == (epoch + 1, Tier.MEMORY)
        await first_steps(ctx, "commands", epoch + 1, DEADLINE_S)

    dead = large.ledger.job("commands").machines[MACHINES // 2]
    large.driver.kill([dead])
    incident = large.closed_incident("commands", DEADLINE_S)
    assert incident.state is IncidentState.RECOVERED, incident
    assert incident.incident_class is IncidentClass.MACHINE_FAULT
    assert incident.machine == dead
    job = large.ledger.job("commands")
    assert [machine.name for machine in large.ledger.machines(state=MachineState.CORDONED)] == [dead]
    assert (len(job.machines), dead in job.machines) == (MACHINES, False)
    assert large.ledger.epochs("commands")[-1].start_step > 0  # the peer's copies, moved to the standby
    large.gateway.command("commands", "stop")


async def _all_hold_a_step(ctx: Context, machines: Sequence[Machine]) -> None:
    """Wait until each rank's shard is in its machine's memory: no job starts again from the first step."""
    deadline = ctx.clock.now() + DEADLINE_S
    while ctx.clock.now() < deadline:
        states = fleet.all_or_raise(await fleet.ask(ctx, machines, lambda agent, _: agent.state()))
        held = [shard for state in states.values() for shard in state.shards if shard.tier is Tier.MEMORY]
        if {shard.rank for shard in held if shard.job == "commands"} == set(range(MACHINES * RANKS)):
            return
        await asyncio.sleep(0.2)
    raise AssertionError("not every rank's shard is in memory")


@pytest.mark.thorough
def test_most_machines_lost_at_once_ask_a_human(large: FleetSite) -> None:
    """The breaker holds: no machine is evicted, memory stays flat, and the report is readable."""
    large.have_standbys(MACHINES)
    out = {machine.name for machine in large.ledger.machines(state=MachineState.CORDONED)}
    job = large.submit("catastrophe", MACHINES)
    before = large.gateway_process.memory_info().rss
    large.driver.kill(job.machines[:LOST_AT_ONCE])
    incident = large.closed_incident("catastrophe", DEADLINE_S)
    assert incident.state is IncidentState.NEEDS_HUMAN, incident
    assert "eviction breaker" in incident.summary
    assert f"{LOST_AT_ONCE - 8} more" in incident.summary
    assert {machine.name for machine in large.ledger.machines(state=MachineState.CORDONED)} == out
    assert large.ledger.job("catastrophe").state is JobState.FAILED
    large.wait("all reported", lambda: _reported(large, incident.id) >= LOST_AT_ONCE // 2, DEADLINE_S)
    assert large.gateway_process.memory_info().rss - before < GROWTH_BYTES
    actions = large.ledger.actions(incident.id)
    report = story.markdown(incident, actions, incident.summary, Verdict(), incident.closed_at).splitlines()
    assert len(report) < 100
    assert max(map(len, report)) < 1000


def _reported(large: FleetSite, incident_id: str) -> int:
    return len(large.ledger.incident(incident_id).alerts)
