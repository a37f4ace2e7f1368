"""Processes that outlive their epoch: real ranks, of which one is killed."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.session.keeping import KeepingAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).with_name("scripts") / "keeping.py"
RANKS, STEPS, VICTIM = 4, 8, 2
TINY = ["--steps", STEPS, "--layers", "1", "--width", "32", "--batch", "2", "--context", "32"]


@pytest.fixture
def agent() -> Iterator[KeepingAgent]:
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir="/dev/shm") as folder:
        made = KeepingAgent(Path(folder), RANKS)
        yield made
        made.close()


def start(agent: KeepingAgent, how: str, rank: int = 0, extra: tuple[str, ...] = ()) -> list[object]:
    args = [how, rank, *TINY, *extra]
    agent.start(SCRIPT, list(map(str, args)), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    return args


def digest(agent: KeepingAgent) -> str:
    found = re.findall(r"weights ([0-9a-f]{64})", agent.output())
    assert found, agent.output()
    return str(found[-1])


def unfaulted(agent: KeepingAgent) -> str:
    start(agent, "")
    assert agent.join() == [0] * RANKS, agent.output()
    return digest(agent)


def saved(agent: KeepingAgent, step: int) -> bool:
    """Whether all ranks know of a common save of ``step`` or later."""
    return len({each["rank"] for each in agent.of("common") if each["step"] >= step}) == RANKS


def killed(agent: KeepingAgent) -> list[int]:
    """Kill one rank; return the pids of all."""
    pids = [int(rank.pid or 0) for rank in agent.ranks]
    os.kill(pids[VICTIM], signal.SIGKILL)
    agent.ranks[VICTIM].join()
    return pids


def go_on(agent: KeepingAgent, script: Path, args: list[str], kept: set[int]) -> None:
    """Begin the next epoch from the common step."""
    step = agent.common_step()
    agent.go_on(script, args, kept, lambda rank: (step, agent.shard(rank, step)))


def resumed(agent: KeepingAgent, args: list[object], kept: set[int]) -> str:
    """Go on from the common step; return the digest of the final weights."""
    go_on(agent, SCRIPT, list(map(str, args)), kept)
    assert agent.join() == [0] * RANKS, agent.output()
    return digest(agent)


SURVIVORS = {0, 1, 3}


@pytest.mark.thorough  # as tests/e2e/test_kept_processes.py, without a site
def test_survivors_go_on_in_their_processes_bit_for_bit(agent: KeepingAgent) -> None:
    expected = unfaulted(agent)
    args = start(agent, "", extra=("--step-seconds", "0.05"))
    agent.wait_for(lambda: saved(agent, 3))
    pids = killed(agent)
    agent.wait_for(lambda: agent.left() == SURVIVORS, 120)
    agent.end(SURVIVORS)
    assert resumed(agent, args, SURVIVORS) == expected
    agent.wait_for(lambda: {each["rank"] for each in agent.of("joined")} == SURVIVORS, 120)
    assert [rank.pid for rank in agent.ranks if rank.pid in pids] == [pids[rank] for rank in (0, 1, 3)]
    assert "call 2" in agent.output()


@pytest.mark.thorough
def test_shards_over_a_device_mesh_go_on_too(agent: KeepingAgent, tmp_path: Path) -> None:
    """FSDP2: groups that a mesh made, in a process that then makes them again."""
    script, steps = SCRIPT.with_name("keeping_fsdp.py"), "100"
    calm, faulty = tmp_path / "calm", tmp_path / "faulty"
    for folder in (calm, faulty):
        folder.mkdir()
        agent.start(script, [steps, str(folder)], OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        if folder == faulty:
            agent.wait_for(lambda: saved(agent, 20))
            killed(agent)
            agent.wait_for(lambda: agent.left() == SURVIVORS, 120)
            go_on(agent, script, [steps, str(folder)], SURVIVORS)
        assert agent.join() == [0] * RANKS, agent.output()
    for rank in range(RANKS):
        expected, found = (torch.load(folder / f"{rank}.pt") for folder in (calm, faulty))
        assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["catches", "sleeps", "computes"])
def test_a_rank_that_waits_for_no_one_is_driven_out(agent: KeepingAgent, how: str) -> None:
    """Rank 0 has lost no peer itself: it is elsewhere, and the others wait for it."""
    args = start(agent, how)
    agent.wait_for(lambda: saved(agent, 2) and "misbehaves" in agent.output(), 120)
    killed(agent)
    agent.end(SURVIVORS)
    agent.wait_for(lambda: agent.left() == SURVIVORS, 120)
    resumed(agent, args, SURVIVORS)


def test_an_error_of_its_own_ends_a_process(agent: KeepingAgent) -> None:
    start(agent, "raises")
    agent.wait_for(lambda: agent.left() == {1, 2, 3}, 120)
    assert agent.ranks[0].exitcode == 1 or agent.ranks[0].join(60) is None
    assert agent.ranks[0].exitcode == 1
    assert "an error of its own" in agent.output()


@pytest.mark.thorough
def test_without_a_word_of_the_agent_they_end_as_ever(agent: KeepingAgent) -> None:
    start(agent, "alone", extra=("--step-seconds", "0.05"))
    agent.wait_for(lambda: saved(agent, 1))
    killed(agent)
    codes = agent.join()
    assert codes == [-signal.SIGKILL if rank == VICTIM else 1 for rank in range(RANKS)], agent.output()
