"""Processes that outlive their epoch, under a real agent: kept, taken up, ended."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.agent.ranks.blocked import ObservedThread
from holdfast.models.agent import RankState
from holdfast.models.alert import AlertKind
from holdfast.models.checkpoint import RestoreOrder, Tier
from tests.agent.gateway import until
from tests.agent.scripts import fence
from tests.agent.site import AgentProcess

pytestmark = [pytest.mark.e2e, pytest.mark.torch]

KEEPS = """
import os, subprocess, time
import holdfast
helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
calls = []
def main():
    calls.append(1)
    print("up", os.environ["HOLDFAST_EPOCH"], "call", len(calls), "helper", helper.pid, flush=True)
    while True:
        time.sleep(600)
holdfast.run(main)
"""
IN_GLOO = """
import os
import torch
import torch.distributed as dist
import holdfast
def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=rank, world_size=2)
    sent = torch.ones(32 << 20)
    dist.barrier()
    print("up", os.environ["HOLDFAST_EPOCH"], "in gloo", flush=True)
    while True:
        dist.broadcast(sent, 0)
holdfast.run(main)
"""
FROM_S3 = RestoreOrder(step=3, epoch=1, tier=Tier.S3, key="there")
_numbers = itertools.count()


@pytest.fixture
def agent(torch_agent: AgentProcess) -> AgentProcess:
    """One whose fork server has torch loaded: a Session needs it."""
    return torch_agent


class KeptJob:
    """One job whose ranks may be kept, under one agent."""

    def __init__(self, agent: AgentProcess, script: str = KEEPS) -> None:
        self.agent, self.name, self.epoch = agent, f"keeps{next(_numbers)}", 0
        agent.script(self.name, script)

    async def start(self, *, keep: bool = True, call: int = 1, **changes: Any) -> list[int]:
        """Start the next epoch; return the ranks' pids once all are in ``main``, for the ``call``-th time."""
        self.epoch += 1
        options = {
            "restore": FROM_S3 if self.epoch > 1 else RestoreOrder(),
            "keep": keep,
            "switch_s": 30.0,
        } | changes
        async with self.agent.client as client:
            ranks = await client.start(self.agent.start(self.name, self.epoch, **options))
        for rank in ranks:
            until(lambda: f"up {self.epoch} " in self.log(rank.rank), 150, f"{rank} in main")  # noqa: B023
        self.states: list[RankState] = sorted(ranks, key=lambda rank: rank.rank)
        assert all(f"up {self.epoch} call {call}" in self.log(rank.rank) for rank in ranks if rank.kept)
        return [rank.pid for rank in self.states]

    async def fence(self, keep_s: float, switch_s: float = 30.0) -> list[int]:
        """End the epoch; processes may be kept for so long, if they leave their training in time."""
        async with self.agent.client as client:
            command = fence(self.agent, self.name, self.epoch)
            return await client.fence(command.model_copy(update={"keep_s": keep_s, "switch_s": switch_s}))

    def log(self, rank: int) -> str:
        """Output of a rank in this epoch."""
        return self.agent.log(self.name, rank, self.epoch)

    def helpers(self) -> list[int]:
        """Processes that the ranks started, as their output of this epoch names them."""
        return [int(self.log(rank).rsplit(" ", 1)[1]) for rank in (0, 1)]


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def stopped_within_a_message(sender: int, receiver: int) -> bool:
    """Stop the receiver, unless it is then between two messages: there Gloo does report its death to the sender."""
    os.kill(receiver, signal.SIGSTOP)
    until(lambda: psutil.Process(receiver).status() == psutil.STATUS_STOPPED, 60, "a peer that is stopped")
    thread = ObservedThread(sender)
    until(lambda: thread.is_blocked(time.monotonic()), 60, "a sender that waits")
    if unsent(sender):
        return True
    os.kill(receiver, signal.SIGCONT)
    return False


def unsent(pid: int) -> int:
    """Bytes that the kernel took from a process and its peers have not: proof of a message that is under way."""
    own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()]
    return sum(int(row[4].split(":")[0], 16) for row in rows if f"socket:[{row[9]}]" in own)


async def test_processes_and_what_they_started_go_on_in_the_next_epoch(agent: AgentProcess) -> None:
    """And end, with all that they started in any epoch, in one that does not keep them."""
    job = KeptJob(agent)
    pids = await job.start()
    assert await job.fence(60) == [0, 1]
    helpers = job.helpers()
    assert all(map(lives, [*pids, *helpers]))
    assert await job.start(call=2) == pids
    assert [rank.kept for rank in job.states] == [True, True]
    assert job.helpers() == helpers
    assert await job.fence(0) == [0, 1]
    assert not any(map(lives, [*pids, *helpers]))


@pytest.mark.parametrize(
    "other", [{"keep": False}, {"args": ("1",)}, {"restore": RestoreOrder()}], ids=["keep", "args", "scratch"]
)
async def test_a_start_that_they_do_not_fit_ends_them(agent: AgentProcess, other: dict[str, Any]) -> None:
    job = KeptJob(agent)
    pids = await job.start()
    await job.fence(60)
    fresh = await job.start(**other)
    assert not {*pids} & {*fresh}
    assert not any(map(lives, pids))
    await job.fence(0)


async def test_they_wait_no_longer_than_they_may(agent: AgentProcess) -> None:
    job = KeptJob(agent)
    pids = await job.start()
    await job.fence(0.5)
    until(lambda: not any(map(lives, pids)), 120, "processes that were to survive")


async def test_a_second_fence_that_keeps_nothing_ends_them(agent: AgentProcess) -> None:
    job = KeptJob(agent)
    pids = await job.start()
    await job.fence(60)
    assert await job.fence(0) == []
    assert not any(map(lives, pids))


async def test_a_rank_that_cannot_leave_in_time_is_ended_alone(agent: AgentProcess) -> None:
    """It is stopped; so is another one later, while it waits for its next epoch."""
    job = KeptJob(agent)
    pids = await job.start()
    os.kill(pids[0], signal.SIGSTOP)
    await job.fence(60, switch_s=50.0)  # it is seen not to move
    assert "rank 0 does not leave its training function: main (train.py:" in agent.agent_log()
    assert [lives(pid) for pid in pids] == [False, True]
    second = await job.start(call=2)
    assert second[1] == pids[1]
    await job.fence(60)
    os.kill(second[1], signal.SIGSTOP)
    third = await job.start(call=2, switch_s=4.0)
    assert third[0] == second[0]
    assert not lives(second[1])
    await job.fence(0)


async def test_a_rank_that_is_killed_while_it_waits_is_reported_and_replaced(agent: AgentProcess) -> None:
    job = KeptJob(agent)
    pids = await job.start()
    await job.fence(60)
    os.kill(pids[1], signal.SIGKILL)
    (alert,) = until(lambda: agent.gateway.alerts(AlertKind.RANK_EXIT, job.name), 60, "its alert")
    assert (alert.rank, alert.epoch, alert.evidence["signal"], alert.evidence["waited"]) == (
        1,
        1,
        "SIGKILL",
        True,
    )
    second = await job.start(call=2)
    assert [second[0] == pids[0], second[1] == pids[1]] == [True, False]
    assert job.states[1].why_new == "it was killed by SIGKILL while it waited for the next epoch"
    await job.fence(0)
    assert len(agent.gateway.alerts(AlertKind.RANK_EXIT, job.name)) == 1


async def test_a_rank_that_gloo_never_lets_go_is_not_waited_for(agent: AgentProcess, tmp_path: Path) -> None:
    """It was in the middle of a send when its peer died: Gloo reports that to no one, and waits for half an hour."""
    job = KeptJob(agent, IN_GLOO)
    sender, receiver = await job.start(env={"MEET": str(tmp_path / "meet")})
    until(lambda: stopped_within_a_message(sender, receiver), 60, "a send that the peer does not take")
    os.kill(receiver, signal.SIGKILL)
    await job.fence(60, switch_s=50.0)
    assert not lives(sender)
    assert "rank 0 does not leave its training function: broadcast (" in agent.agent_log()
