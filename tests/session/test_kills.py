"""A rank that is killed at any moment leaves the newest save that all ranks had."""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.checkpoints import buffers
from tests.session.harness import _forks
from tests.session.killed import save_for_ever

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Real shared memory."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


def kill_often(folder: Path, times: int, within_s: float) -> int:
    """Kill a saving process at random moments and look each time; how often in the middle of a save."""
    told, begun, hit = folder / "told", time.monotonic(), 0
    told.write_bytes(struct.pack("<qq", 0, 0))
    for epoch in range(1, times + 1):
        before = told.read_bytes()
        process = _forks.Process(target=save_for_ever, args=(str(folder / "own"), str(told), epoch))
        process.start()
        deadline = time.monotonic() + 60
        while told.read_bytes() == before:
            assert process.is_alive(), "it ended by itself"
            assert time.monotonic() < deadline, f"no common save in 60 s after {epoch} starts"
            time.sleep(0.0005)
        time.sleep(random.random() * 0.01)
        process.kill()
        process.join(10)
        common = struct.unpack("<qq", told.read_bytes())
        found = {(each.epoch, each.step): path for path, each in buffers.inventory(folder / "own")}
        assert common in found, f"common {common} is gone after {epoch} kills: {sorted(found)}"
        buffers.verify(found[common])
        hit += len(found) == 1
        if time.monotonic() - begun > within_s:
            break
    return hit


def test_kills_at_random_moments_lose_no_common_save(folder: Path) -> None:
    """As many as fit into some seconds, many of them in the middle of a copy."""
    assert kill_often(folder, 300, 15.0) > 0


@pytest.mark.thorough
def test_a_thousand_kills_lose_no_common_save(folder: Path) -> None:
    """The same, a thousand times."""
    assert kill_often(folder, 1000, 900.0) > 50
