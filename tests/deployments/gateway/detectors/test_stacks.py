"""Stacks of a silent job: read some seconds apart, and only while it is silent."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest
from pydantic import TypeAdapter

from holdfast.deployments.gateway.detectors import stacks as reading
from holdfast.deployments.gateway.detectors.stacks import HttpStacks, StackHistory, digests
from holdfast.models.agent import Frame, Heartbeat, JobOnMachine, RankPhase, RankState, StackDump
from holdfast.models.alert import IncidentClass
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.testing.gateway_kit import JOB, Kit


class FakeStacks:
    """Scripted answers of the agents."""

    def __init__(self) -> None:
        self.asked = 0
        self.changing = False

    async def read(self, job: Job, machines: Mapping[str, Machine]) -> dict[int, str]:
        self.asked += 1
        return dict.fromkeys(range(4), f"s{self.asked if self.changing else 0}")


def dump(rank: int | None, line: int, *, child: bool = False, thread: str = "MainThread") -> StackDump:
    return StackDump(
        machine="m0",
        rank=rank,
        pid=1,
        thread=thread,
        child=child,
        frames=(Frame(function="f", file="x.py", line=line),),
    )


def test_a_digest_covers_all_threads_of_a_rank_and_no_children() -> None:
    """A data loader may wait as it likes."""
    threads = [dump(0, 1), dump(0, 2, thread="T")]
    first = digests([*threads, dump(0, 9, child=True), dump(1, 1), dump(None, 3)])
    assert set(first) == {0, 1}
    assert digests([*reversed(threads), dump(0, 8, child=True), dump(1, 1)]) == first
    assert digests([dump(0, 1), dump(0, 3, thread="T")])[0] != first[0]


async def test_stacks_are_digested_machine_by_machine(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a thousand machines together are half a gigabyte; one that does not answer is left out."""
    dumps_of = {number: [dump(number, 1), dump(number, 2, thread="T")] for number in (0, 1)}
    at_once: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        mine = dumps_of.get(int(request.url.host.removeprefix("m")))
        if mine is None:
            return httpx.Response(503)
        return httpx.Response(200, content=TypeAdapter(list[StackDump]).dump_json(mine))

    def counted(dumps: list[StackDump]) -> dict[int, str]:
        at_once.append(len(dumps))
        return digests(dumps)

    monkeypatch.setattr(reading, "digests", counted)
    job = await kit.running_job(machines=3)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        found = await HttpStacks(http, "secret").read(job, kit.gateway.site.fleet.machines)
    assert found == digests([*dumps_of[0], *dumps_of[1]])
    assert at_once == [2, 2]


def test_a_rank_is_unchanged_after_enough_equal_samples() -> None:
    """One change starts the count again."""
    history = StackHistory(1)
    for sample in ({0: "a", 1: "a"}, {0: "a", 1: "b"}, {0: "a", 1: "b"}):
        history.add(sample)
    assert history.unchanged(3) == {0}
    assert history.unchanged(2) == {0, 1}


async def busy_and_silent(kit: Kit, seconds: float, *, changing: bool = False) -> FakeStacks:
    """Ranks that use their processors and complete no step."""
    await kit.running_job()
    stacks = FakeStacks()
    stacks.changing = changing
    kit.gateway.hangs._stacks = stacks
    began = kit.clock.now()
    while kit.clock.now() - began < seconds:
        kit.clock.advance(1.0)
        now = kit.clock.now()
        for machine, ranks in (("m0", (0, 1)), ("m1", (2, 3))):
            states = tuple(
                RankState(
                    rank=rank,
                    pid=rank + 1,
                    phase=RankPhase.RUNNING,
                    step=9,
                    steps_done=9,
                    step_at=began,
                    step_s=0.2,
                    cpu_s=now - began,
                    process_state="R",
                )
                for rank in ranks
            )
            run = JobOnMachine(job=JOB, epoch=1, ranks=states)
            kit.gateway.observe(Heartbeat(machine=machine, incarnation="i1", at=now, jobs=(run,)))
        await kit.gateway.hangs.tick()
        await kit.settled()
    return stacks


async def test_busy_ranks_whose_stacks_do_not_change_hang(kit: Kit) -> None:
    """Spinning in a collective looks busy: equal stacks are the second signal."""
    stacks = await busy_and_silent(kit, 60)
    (incident,) = kit.incidents()
    assert incident.incident_class is IncidentClass.JOB_HANG
    assert "unchanged" in str(incident.alerts[0].evidence["reasons"])
    assert stacks.asked == kit.gateway.site.policy.hang.stacks_samples


async def test_busy_ranks_whose_stacks_change_do_not(kit: Kit) -> None:
    """A long step works."""
    stacks = await busy_and_silent(kit, 60, changing=True)
    assert stacks.asked > 3
    assert not kit.incidents()
