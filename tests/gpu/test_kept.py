"""Processes that outlive their epoch keep the GPU: its context, what lies there, and the right next step."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gpu.saving import SHARED_MEMORY, report
from tests.session.harness import REPOSITORY
from tests.session.keeping import KeepingAgent

SCRIPT = Path(__file__).with_name("scripts") / "kept.py"
STEPS, PAUSE_S, DEADLINE_S = 30, 0.02, 60.0
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY),
}


@contextmanager
def keeping(ranks: int) -> Iterator[KeepingAgent]:
    """An agent that keeps processes, in shared memory."""
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-", dir=SHARED_MEMORY) as folder:
        made = KeepingAgent(Path(folder), ranks)
        try:
            yield made
        finally:
            made.close()


def start(agent: KeepingAgent, backend: str) -> list[str]:
    args = [backend, str(STEPS), str(PAUSE_S)]
    agent.start(SCRIPT, args, **ENVIRONMENT)
    return args


def ends(agent: KeepingAgent) -> list[str]:
    """Wait for the end; return each rank's digest of its state."""
    assert agent.join(DEADLINE_S) == [0] * agent.world_size, agent.output()
    found = dict(re.findall(r"rank (\d+) pid \d+: weights ([0-9a-f]{64})", agent.output()))
    assert len(found) == agent.world_size, agent.output()
    return [found[str(rank)] for rank in range(agent.world_size)]


def go_on(agent: KeepingAgent, args: list[str], kept: set[int]) -> int:
    """Begin the next epoch from the common step; return that."""
    step = agent.common_step()
    agent.go_on(SCRIPT, args, kept, lambda rank: (step, agent.shard(rank, step)))
    return step


def saved(agent: KeepingAgent, step: int) -> bool:
    return len({each["rank"] for each in agent.of("common") if each["step"] >= step}) == agent.world_size


def first_step_at(agent: KeepingAgent) -> float:
    """Wait for the present epoch's first step on all ranks; return when the last of them had it."""
    agent.wait_for(lambda: len({each["rank"] for each in agent.of("step")}) == agent.world_size, DEADLINE_S)
    first: dict[int, float] = {}
    for each in agent.of("step"):
        first.setdefault(each["rank"], each["at"])
    return max(first.values())


def calls_of(agent: KeepingAgent, rank: int) -> list[tuple[str, str, str, str]]:
    """Return pid, number of the call, and whether and where the tensor was, of each call in both epochs' logs."""
    logs = "".join((agent.folder / f"e{epoch}.log").read_text() for epoch in range(1, agent.epoch + 1))
    return re.findall(rf"rank {rank} pid (\d+): call (\d+) held (\w+) at (\d+)", logs)


def test_a_rank_alone_makes_nccls_group_again_in_its_context() -> None:
    """The group is aborted under it, in the middle of its steps; the next call of its function goes on exactly."""
    with keeping(1) as agent:
        start(agent, "nccl")
        expected = ends(agent)
    with keeping(1) as agent:
        args = start(agent, "nccl")
        agent.wait_for(lambda: saved(agent, 5), DEADLINE_S)
        ended = time.time()
        agent.end({0})
        agent.wait_for(lambda: agent.left() == {0}, DEADLINE_S)
        left = time.time()
        step = go_on(agent, args, {0})
        after = first_step_at(agent)
        assert ends(agent) == expected
        report("kept-nccl", {"left_s": left - ended, "end_to_next_step_s": after - ended, "from_step": step})
        require_kept(calls_of(agent, 0))


def test_a_rank_whose_peer_dies_keeps_its_process_and_its_context() -> None:
    """Two ranks share the GPU over Gloo; one is killed."""
    with keeping(2) as agent:
        start(agent, "gloo")
        expected = ends(agent)
    with keeping(2) as agent:
        args = start(agent, "gloo")
        agent.wait_for(lambda: saved(agent, 5), DEADLINE_S)
        killed = time.time()
        os.kill(int(agent.ranks[1].pid or 0), signal.SIGKILL)
        agent.ranks[1].join()
        agent.wait_for(lambda: agent.left() == {0}, DEADLINE_S)
        left = time.time()
        step = go_on(agent, args, {0})
        after = first_step_at(agent)
        assert ends(agent) == expected
        report(
            "kept-gloo", {"left_s": left - killed, "kill_to_next_step_s": after - killed, "from_step": step}
        )
        require_kept(calls_of(agent, 0))
        assert len({pid for pid, *_ in calls_of(agent, 1)}) == 2


def require_kept(calls: list[tuple[str, str, str, str]]) -> None:
    """The same process was called twice, and what lay on the GPU lies there."""
    assert [number for _, number, *_ in calls] == ["1", "2"], calls
    assert len({(pid, whole, at) for pid, _, whole, at in calls}) == 1, calls
    assert calls[0][2] == "True"
