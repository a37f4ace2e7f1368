"""Tensors that torch shares by name are gone with their epoch; those of other processes stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.agent.ranks import torch_files
from tests.agent.gateway import FakeGateway, until
from tests.agent.scripts import fence
from tests.agent.site import AgentProcess

SHM = Path("/dev/shm")
DEAD = 2**22 + 1
"""Above the kernel's largest pid."""

SHARES = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader
torch.multiprocessing.set_sharing_strategy("file_system")
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return torch.zeros(100)
held = torch.zeros(1000).share_memory_()
loader = DataLoader(Rows(), batch_size=4, num_workers=1)
batches = iter(loader)
batch = next(batches)
note = Path(sys.argv[1])
note.with_suffix(".new").write_text(" ".join(map(str, [os.getpid(), *(w.pid for w in batches._workers)])))
note.with_suffix(".new").rename(note)
time.sleep(600)
"""


def of(pids: list[int]) -> list[Path]:
    return sorted(file for pid in pids for file in SHM.glob(f"torch_{pid}_*"))


def shared(note: Path) -> list[int]:
    """Pids of a rank and of its loader's worker, once both have tensors in shared memory."""
    until(note.exists, 180, f"{note.name} to have shared tensors")
    pids = [int(pid) for pid in note.read_text().split()]
    until(lambda: all(of([pid]) for pid in pids), 90, "control: each to have tensors by name")
    return pids


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[list[int]]:
    """A user's own process on the same host."""
    (tmp_path / "own.py").write_text(SHARES)
    process = subprocess.Popen([sys.executable, tmp_path / "own.py", tmp_path / "bystander"])
    try:
        yield shared(tmp_path / "bystander")
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()
        torch_files.remove([process.pid, *map(int, (tmp_path / "bystander").read_text().split())], 0.0)


@pytest.mark.e2e
@pytest.mark.torch
async def test_tensors_of_ranks_are_gone_after_a_fence(
    torch_agent: AgentProcess, tmp_path: Path, bystander: list[int]
) -> None:
    """One job's rank was killed, another's is: each takes its own and its loader's tensors, and none of others."""
    agent, notes = torch_agent, {job: tmp_path / job for job in ("dies", "lives")}
    async with agent.client as client:
        ranks = {}
        for job, note in notes.items():
            agent.script(job, SHARES)
            (ranks[job],) = await client.start(agent.start(job, ranks=(0,), world_size=1, args=(str(note),)))
        dies, lives = (shared(note) for note in notes.values())
        kept = of(lives), of(bystander)
        os.kill(ranks["dies"].pid, signal.SIGKILL)
        until(lambda: not any(psutil.pid_exists(pid) for pid in dies))
        await client.fence(fence(agent, "dies"))
        assert of(dies) == []
        # Their loaders read ahead, sooner or later: more may be there than before.
        assert {*kept[0]} <= {*of(lives)}
        assert {*kept[1]} <= {*of(bystander)}
        await client.fence(fence(agent, "lives"))
        assert of(lives) == []
        assert {*kept[1]} <= {*of(bystander)}


@pytest.mark.e2e
@pytest.mark.torch
async def test_the_next_agent_has_a_dead_ones_tensors_removed(
    home: Path, gateway: FakeGateway, tmp_path: Path
) -> None:
    """SIGKILL of an agent: its ranks end with it; torch's helper outlives the next agent's start and removes theirs."""
    first = AgentProcess(home, "m5", gateway, HOLDFAST_PRELOAD="json").ready()
    first.script("toy", SHARES)
    async with first.client as client:
        await client.start(first.start("toy", ranks=(0,), world_size=1, args=(str(tmp_path / "rank"),)))
    pids = shared(tmp_path / "rank")
    first.stop(signal.SIGKILL)
    second = AgentProcess(home, "m5", gateway, HOLDFAST_PRELOAD="json").ready()
    try:
        until(lambda: not of(pids), 90, f"{of(pids)} to be removed")
    finally:
        second.stop()


def made(folder: Path, name: str) -> Path:
    (folder / name).write_bytes(b"tensor")
    return folder / name


def test_only_what_the_pids_made_goes(tmp_path: Path) -> None:
    """Another pid's, one whose number begins alike, another library's, a folder, and files of a living process stay."""
    began = time.time() - 1
    ours = made(tmp_path, f"torch_{DEAD}_77_0")
    names = (
        f"torch_{DEAD + 1}_77_0",
        f"torch_{DEAD}7_77_0",
        f"psm_{DEAD}",
        f"torch_{DEAD}",
        f"torch_{os.getpid()}_1_0",
    )
    kept = [made(tmp_path, name) for name in names]
    (tmp_path / f"torch_{DEAD}_folder_0").mkdir()
    assert torch_files.remove([DEAD, os.getpid()], began, tmp_path) == [ours.name]
    assert all(file.exists() for file in kept)


def test_what_was_there_before_the_epoch_stays(tmp_path: Path) -> None:
    """Another process had the pid before."""
    old = made(tmp_path, f"torch_{DEAD}_77_0")
    assert torch_files.remove([DEAD], time.time() + 60, tmp_path) == []
    assert old.exists()


def test_another_users_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs as another user."""
    other = made(tmp_path, f"torch_{DEAD}_77_0")
    monkeypatch.setattr(os, "geteuid", lambda: other.stat().st_uid + 1)
    assert torch_files.remove([DEAD], 0.0, tmp_path) == []
    assert other.exists()


def test_no_shared_memory_is_no_error(tmp_path: Path) -> None:
    """A platform without that folder."""
    assert torch_files.remove([DEAD], 0.0, tmp_path / "none") == []
