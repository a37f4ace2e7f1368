"""SIGTERM before SIGKILL: for ranks that handle it, and for no longer than they are given."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from holdfast.models.agent import RankPhase
from tests.agent.gateway import FakeGateway, until
from tests.agent.scripts import SLEEP, fence
from tests.agent.site import AgentProcess

pytestmark = pytest.mark.e2e

SAVES = """
import os, signal, sys, time
from pathlib import Path
saved = Path(sys.argv[1]) / os.environ["RANK"]
def save(number, frame):
    time.sleep(0.3)
    saved.write_text("flushed")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
"""
STAYS = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))\nprint('up', flush=True)\n"
IGNORES = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
GRACE_S = 1.0
NEVER_S = 50.0
"""No test waits for it."""


async def stopped(agent: AgentProcess, job: str, script: str, grace_s: float, *args: str) -> list[int]:
    """Start two ranks and fence them."""
    agent.script(
        job, script + "while True:\n    time.sleep(1)\n" if "import os" in script else script + SLEEP
    )
    async with agent.client as client:
        ranks = await client.start(agent.start(job, args=args))
        until(lambda: "up" in agent.log(job, 0) and "up" in agent.log(job, 1))
        ended = await client.fence(fence(agent, job).model_copy(update={"grace_s": grace_s}))
        assert not any(psutil.pid_exists(rank.pid) for rank in ranks)
        return ended


async def test_a_script_that_handles_sigterm_may_finish(
    agent: AgentProcess, gateway: FakeGateway, tmp_path: Path
) -> None:
    """It flushes its data; its end is no alert; and the stop waits no longer than it takes."""
    begun = time.monotonic()
    assert await stopped(agent, "saves", SAVES, NEVER_S, str(tmp_path)) == [0, 1]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "flushed", "1": "flushed"}
    assert time.monotonic() - begun < NEVER_S
    assert not gateway.done("saves")


async def test_a_rank_that_ended_well_at_sigterm_is_not_reported_as_done(agent: AgentProcess) -> None:
    """While another one still takes its time: a job whose ranks all end so is not done."""
    go = agent.folder / "staggered-go"
    waits = f"while saved.name == '1' and not Path({str(go)!r}).exists(): time.sleep(0.01)"
    assert SAVES.count("time.sleep(0.3)") == 1
    early = SAVES.replace("time.sleep(0.3)", waits)
    agent.script("staggered", early + "while True:\n    time.sleep(1)\n")
    async with agent.client as client:
        await client.start(agent.start("staggered", args=(str(agent.folder),)))
        until(lambda: "up" in agent.log("staggered", 0) and "up" in agent.log("staggered", 1))
        fencing = asyncio.create_task(
            client.fence(fence(agent, "staggered").model_copy(update={"grace_s": NEVER_S}))
        )
        gone = None
        while gone is None and not fencing.done():
            ranks = [rank for run in (await client.state()).jobs for rank in run.ranks]
            gone = next((rank for rank in ranks if rank.phase is RankPhase.EXITED), None)
            await asyncio.sleep(0.05)
        go.touch()
        await fencing
    assert gone is not None
    assert (gone.rank, gone.exit_code) == (0, None)


async def test_without_a_grace_it_may_not(agent: AgentProcess, tmp_path: Path) -> None:
    """Control: a fence that gives no time is what it was."""
    assert await stopped(agent, "hurries", SAVES, 0.0, str(tmp_path)) == [0, 1]
    assert list(tmp_path.iterdir()) == []


async def test_a_script_that_stays_is_killed(agent: AgentProcess) -> None:
    """SIGKILL when its time is up, and not before."""
    agent.script("stays", STAYS + SLEEP)
    async with agent.client as client:
        (rank,) = await client.start(agent.start("stays", ranks=(0,), world_size=1))
        until(lambda: "up" in agent.log("stays"))
        begun = time.monotonic()
        assert await client.fence(fence(agent, "stays").model_copy(update={"grace_s": GRACE_S})) == [0]
        assert time.monotonic() - begun > 0.9 * GRACE_S
        assert not psutil.pid_exists(rank.pid)


@pytest.mark.parametrize("script", [IGNORES, "print('up', flush=True)\n"], ids=["ignored", "default"])
async def test_no_one_waits_for_a_script_without_a_handler(agent: AgentProcess, script: str) -> None:
    """There is nothing that it would do with the time."""
    begun = time.monotonic()
    assert await stopped(agent, f"plain{len(script)}", script, NEVER_S) == [0, 1]
    assert time.monotonic() - begun < NEVER_S


async def test_no_one_waits_for_a_stopped_process(agent: AgentProcess) -> None:
    """Its handler cannot run."""
    agent.script("halted", STAYS + SLEEP)
    async with agent.client as client:
        (rank,) = await client.start(agent.start("halted", ranks=(0,), world_size=1))
        until(lambda: "up" in agent.log("halted"))
        os.kill(rank.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED)
        begun = time.monotonic()
        await client.fence(fence(agent, "halted").model_copy(update={"grace_s": NEVER_S}))
        assert time.monotonic() - begun < NEVER_S
        assert not psutil.pid_exists(rank.pid)
