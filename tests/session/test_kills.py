"""A rank that is killed at any moment leaves the newest save that all ranks had."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.models.checkpoint import Copies, RestorePlan
from holdfast.storage.checkpoints.save import buffers
from tests.session.harness import _forks
from tests.session.killed import save_for_ever
from tests.session.paired import PairedAgent
from tests.storage.checkpoints.format.test_shards import stop_in_a_copy

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
RANKS = 3
SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Real shared memory."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


def kill_often(folder: Path, times: int, torn: int, within_s: float, aimed: int = 0) -> int:
    """Kill a saving process at random moments and look each time; how often in the middle of a save.

    It is killed so many ``times``, and on until ``torn`` kills came in the middle of a save or time is up. With
    ``aimed`` one of so many kills is no matter of luck: the process is stopped in the middle of a save first.
    """
    outcome, begun, hit = folder / "told", time.monotonic(), 0
    outcome.write_bytes(struct.pack("<qq", 0, 0))
    for epoch in itertools.count(1):
        if (epoch > times and hit >= torn) or time.monotonic() - begun > within_s:
            break
        before = outcome.read_bytes()
        process = _forks.Process(target=save_for_ever, args=(str(folder / "own"), str(outcome), epoch))
        process.start()
        deadline = time.monotonic() + 180
        while outcome.read_bytes() == before:
            assert process.is_alive(), "it ended by itself"
            assert time.monotonic() < deadline, f"no common save in 180 s after {epoch} starts"
            time.sleep(0.0005)
        if aimed and epoch % aimed == 0:
            assert process.pid
            stop_in_a_copy(process.pid, folder / "own")
        else:
            time.sleep(random.random() * 0.01)
        process.kill()
        process.join(60)
        common = struct.unpack("<qq", outcome.read_bytes())
        found = {(each.epoch, each.step): path for path, each in buffers.inventory(folder / "own")}
        assert common in found, f"common {common} is gone after {epoch} kills: {sorted(found)}"
        buffers.verify(found[common])
        hit += len(found) == 1
    return hit


def test_kills_at_random_moments_lose_no_common_save(folder: Path) -> None:
    """Some of them in the middle of a copy; a thousand are thorough."""
    assert kill_often(folder, 9, 3, 240.0, aimed=3) >= 3


CHOICES = {
    "default": Copies(own=2, peer=2),
    "one-own-buffer": Copies(own=1, peer=2),
    "one-on-the-peer": Copies(own=2, peer=1),
    "two-in-all": Copies(own=1, peer=1),
}


def kill_a_job_often(folder: Path, copies: Copies, times: int) -> int:
    """Kill all ranks of a job at random moments and resume it; how often in the middle of a copy."""
    agent, at, torn = PairedAgent(folder, RANKS, copies), 0, 0
    try:
        for _ in range(times):
            plan = agent.chosen()
            assert plan.step >= at, f"step {at} was common; now {plan}"
            agent.start(SCRIPTS / "kept.py", ["0.5"], restoring(agent, plan))
            agent.wait_for(lambda: len(agent.of("common")) > RANKS or not agent.alive)
            assert agent.alive, agent.output()
            time.sleep(random.random() * 0.05)
            agent.kill()
            agent.settle()
            at = max(plan.step, *agent.common())
            held = {header.rank for _, header in buffers.inventory(agent.shards) if header.step >= at}
            torn += len(held) < RANKS
    finally:
        agent.close()
    return torn


def restoring(agent: PairedAgent, plan: RestorePlan) -> Callable[[int], tuple[int, Path]] | None:
    """Where each rank finds its state."""
    if not plan.step:
        return None
    where = {rank: agent.fetch(rank, plan) for rank in range(RANKS)}
    return lambda rank: (plan.step, where[rank])


@pytest.mark.thorough
@pytest.mark.parametrize("choice", CHOICES)
def test_a_job_killed_at_any_moment_goes_on_from_its_newest_common_save(folder: Path, choice: str) -> None:
    """With each choice of copies: no step that all ranks had is lost, and each rank's bytes are those of the step."""
    kill_a_job_often(folder, CHOICES[choice], 3)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("choice", CHOICES)
def test_hundreds_of_kills_of_a_job_lose_nothing(folder: Path, choice: str) -> None:
    """The same, 250 times each; some of the kills come while the only own buffer is written."""
    torn = kill_a_job_often(folder, CHOICES[choice], 250)
    assert torn > 0 or CHOICES[choice].own == 2


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_a_thousand_kills_lose_no_common_save(folder: Path) -> None:
    """The same, a thousand times."""
    assert kill_often(folder, 1000, 51, 1800.0) > 50
