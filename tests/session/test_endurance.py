"""Hundreds of saves take no more memory than the first, and a rank that dies in the middle of one loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from holdfast.storage.checkpoints.format.layout import align
from holdfast.storage.checkpoints.load import reader
from holdfast.storage.checkpoints.save import buffers
from tests.session.harness import FakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).with_name("scripts") / "growing.py"


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    """A fake agent whose shards lie in real shared memory."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    made = FakeAgent(folder, 1)
    yield made
    made.close()
    shutil.rmtree(folder)


def test_500_saves_leave_memory_flat(agent: FakeAgent, tmp_path: Path) -> None:
    """The rank's memory after 500 saves is that after 50; shared memory is exactly two buffers."""
    out = tmp_path / "memory.jsonl"
    agent.start(SCRIPT, [500, 8, out])
    assert agent.join() == [0], agent.output()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["saved"] for line in lines] == list(range(50, 501, 50))
    first, last = lines[0], lines[-1]
    assert last["RssAnon"] - first["RssAnon"] < 512  # KiB, about 1 a save
    assert last["RssShmem"] - first["RssShmem"] < 64
    assert last["Threads"] == first["Threads"]
    shards = sorted(agent.shards.glob("*"))
    files = [path for path in shards if path.suffix != ".pickle"]
    assert [path.name for path in files] == ["r0-a.shard", "r0-b.shard"]
    for path in files:
        status, header = path.stat(), buffers.verify(path)
        assert status.st_size == header.file_nbytes
        assert status.st_blocks * 512 == align(status.st_size, 4096)
        assert header.file_nbytes < (8 << 20) + 65536
    kept = [path.stat().st_size for path in shards if path.suffix == ".pickle"]
    assert len(kept) <= 2  # one metadata of each buffer, however many saves there were
    assert max(kept) < 12288


@pytest.mark.thorough
def test_a_rank_killed_in_the_middle_of_a_copy_resumes_from_the_save_before(agent: FakeAgent) -> None:
    """SIGKILL while a slot is half written: the other one is complete, is restored, and training goes on."""
    at = 0
    for _ in range(3):
        agent.start(SCRIPT, [100_000, 64], resume(agent, at))
        hit = kill_in_the_middle(agent)
        (path, header), *others = buffers.inventory(agent.shards)
        assert not others
        assert path.name != hit
        assert header.step > at
        loaded = reader.load(
            path, lambda _: {"model": {f"parts.{n}": torch.zeros(64 << 16) for n in range(4)}}
        )
        assert all((part == header.step).all() for part in loaded["model"].values())
        at = header.step
    agent.start(SCRIPT, [at + 2, 64], resume(agent, at))
    assert agent.join() == [0], agent.output()
    assert agent.common_step() == at + 2


def resume(agent: FakeAgent, step: int) -> Callable[[int], tuple[int, Path]] | None:
    """Where each rank finds its state; None: from scratch."""
    return (lambda rank: (step, agent.shard(rank, step))) if step else None


def kill_in_the_middle(agent: FakeAgent) -> str:
    """Kill the rank when one slot is being written and the other is complete; the name of the former."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        states = {path.name: state_of(path) for path in agent.shards.glob("r0-?.shard")}
        if sorted(states.values()) == [buffers.WRITING, buffers.COMPLETE]:
            pid = agent.ranks[0].pid
            assert pid
            os.kill(pid, signal.SIGSTOP)
            now = {path.name: state_of(path) for path in agent.shards.glob("r0-?.shard")}
            if sorted(now.values()) == [buffers.WRITING, buffers.COMPLETE] and len(agent.of("saved")) >= 2:
                agent.kill()
                return next(name for name, state in now.items() if state == buffers.WRITING)
            os.kill(pid, signal.SIGCONT)
    pytest.fail(f"no copy was caught under way; log:\n{agent.output()}")


def state_of(path: Path) -> int:
    with path.open("rb") as file:
        return int(struct.unpack("<8xQ", file.read(16))[0])
