"""Ranks of a real agent on a real GPU: forked from a server that never touched CUDA; each sees what its job names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.models.agent import RankPhase, RankState
from tests.agent.gateway import until
from tests.agent.scripts import fence
from tests.agent.site import AgentProcess
from tests.gpu.machine import WAIT_S, pids
from tests.gpu.recorded import measured

pytestmark = pytest.mark.e2e
FIRST = """
import json, os, sys, time
before = {
    "torch loaded": "torch" in sys.modules,
    "initialised": "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized(),
}
import torch
began = time.monotonic()
total = torch.ones(1000, device="cuda").sum().item()
facts = {
    **before,
    "total": total,
    "first_s": time.monotonic() - began,
    "at": time.time(),
    "count": torch.cuda.device_count(),
    "name": torch.cuda.get_device_name(0),
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "local": os.environ.get("LOCAL_RANK"),
    "nvml_context": torch.cuda.mem_get_info()[1],
}
print("facts " + json.dumps(facts), flush=True)
"""
STAYS = f"{FIRST}\ntime.sleep(600)\n"


def facts(agent: AgentProcess, job: str, rank: int = 0) -> dict[str, Any]:
    """A rank's printed facts, once it printed them."""

    def line() -> str | None:
        lines = agent.log(job, rank).splitlines()
        return next((each for each in lines if each.startswith("facts ")), None)

    found: dict[str, Any] = json.loads(
        until(line, WAIT_S, f"{job}:\n{agent.log(job, rank)}").removeprefix("facts ")
    )
    return found


def devices(process: psutil.Process) -> set[str]:
    """Of NVIDIA's driver, that a process has open."""
    folder = Path(f"/proc/{process.pid}/fd")
    found = {os.readlink(each) for each in folder.iterdir() if each.is_symlink()}
    return {each for each in found if each.startswith("/dev/nvidia")}


async def test_the_agent_and_its_fork_server_never_touch_cuda(agent: AgentProcess) -> None:
    """Before ranks and after: no device is open in them, nor do they take memory of the GPU."""
    agent.script("alone", FIRST)
    async with agent.client as client:
        await client.start(agent.start("alone", ranks=(0,), world_size=1))
    facts(agent, "alone")
    until(lambda: 0 in agent.gateway.done("alone"), WAIT_S, "the rank to be done")
    servers = [each for each in agent.family() if "forkserver" in " ".join(each.cmdline())]
    assert servers
    assert not [each for each in servers if devices(each)]
    assert not pids() & {agent.process.pid, *(each.pid for each in servers)}


def new_interpreter() -> tuple[dict[str, Any], float]:
    """The printed facts of a process of its own, and seconds from its start to the end of its first operation."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].removeprefix("facts "))
    return found, found["at"] - began


async def test_a_forked_rank_has_the_gpu_sooner_than_a_new_interpreter(agent: AgentProcess) -> None:
    """Time from the command, and from the interpreter's start, to the end of the first operation."""
    alone, fresh_s = new_interpreter()
    agent.script("first", FIRST)
    forked: list[float] = []
    for epoch in (1, 2):
        began = time.time()
        async with agent.client as client:
            await client.start(agent.start("first", epoch=epoch, ranks=(0,), world_size=1))
        until(lambda: "facts" in agent.log("first", epoch=epoch), WAIT_S, "the rank")  # noqa: B023
        found = json.loads(agent.log("first", epoch=epoch).splitlines()[-1].removeprefix("facts "))
        forked.append(found["at"] - began)
        assert (found["torch loaded"], found["initialised"], found["total"]) == (True, False, 1000.0)
        async with agent.client as client:
            await client.fence(fence(agent, "first", epoch))
    measured(
        f"first operation on the GPU: {fresh_s:.2f} s after Python's start (CUDA {alone['first_s']:.2f}), "
        f"{forked[0]:.2f} and {forked[1]:.2f} s after the command to fork ({found['first_s']:.2f})"
    )


async def test_ranks_see_the_gpus_that_their_job_names(agent: AgentProcess) -> None:
    """All of them unless the job's environment names some; two ranks on one GPU have a context each."""
    agent.script("two", STAYS)
    async with agent.client as client:
        started = await client.start(agent.start("two", env={"CUDA_VISIBLE_DEVICES": "0"}))
        ranks = [facts(agent, "two", rank) for rank in (0, 1)]
        states: list[RankState] = [rank for run in (await client.state()).jobs for rank in run.ranks]
        await client.fence(fence(agent, "two"))
    measured(f"a rank of two on one GPU: {ranks[1]}")
    assert [(each["visible"], each["local"], each["count"]) for each in ranks] == [
        ("0", "0", 1),
        ("0", "1", 1),
    ]
    assert not [
        each
        for each in states
        if each.phase is RankPhase.EXITED and each.rank in (0, 1) and each.pid in _pids(started)
    ]
    until(lambda: not pids() & _pids(started), 15.0, "both ranks to have left the GPU")


def _pids(started: list[RankState]) -> set[int]:
    return {each.pid for each in started}
