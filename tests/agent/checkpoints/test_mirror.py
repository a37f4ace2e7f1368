"""Shards that are sent to one more machine while a move is prepared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.checkpoints.memory import Memory
from holdfast.agent.checkpoints.mirror import Mirrors
from holdfast.agent.checkpoints.shard_port import ShardPort
from holdfast.models.agent import Mirror
from holdfast.models.checkpoint import Copies, Tier
from tests.agent.shards import write_shard

SECRET = "s3cret"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    """Of the machine that joins."""
    return Memory("m9", tmp_path / "m9")


@pytest.fixture
def port(memory: Memory) -> Iterator[ShardPort]:
    """Its data port."""
    made = ShardPort(memory, SECRET, "127.0.0.1")
    yield made
    made.close()


def run(epoch: int = 1) -> Any:
    """The parts of a run that a mirror uses."""
    return SimpleNamespace(start=SimpleNamespace(job="toy", epoch=epoch, copies=Copies()))


def order(address: str, keep_s: float = 60.0) -> Mirror:
    """To that machine."""
    return Mirror(job="toy", epoch=1, incarnation="i1", address=address, keep_s=keep_s)


def steps(memory: Memory) -> set[int]:
    """Steps that the machine has as copies."""
    return {shard.step for shard in memory.shards() if shard.tier is Tier.PEER}


def until_has(memory: Memory, step: int) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 180.0
    while step not in steps(memory):
        assert time.monotonic() < deadline, steps(memory)
        time.sleep(0.005)


def test_each_save_is_sent_while_it_is_ordered(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """From the order on, for its epoch, until its time is over."""
    mirrors = Mirrors(SECRET)
    mirrors.saved(run(), 0, 1, write_shard(tmp_path / "mine", step=1))
    mirrors.order(order(port.address))
    mirrors.saved(run(), 0, 2, write_shard(tmp_path / "mine", step=2))
    until_has(memory, 2)
    mirrors.saved(run(epoch=2), 0, 3, write_shard(tmp_path / "mine", step=3))
    mirrors.order(order(port.address, keep_s=1e-9))
    mirrors.saved(run(), 0, 4, write_shard(tmp_path / "mine", step=4))
    mirrors.order(order(port.address))
    mirrors.saved(run(), 0, 5, write_shard(tmp_path / "mine", step=5))
    until_has(memory, 5)
    mirrors.close()
    assert steps(memory) == {2, 5}


def test_a_step_that_is_saved_a_second_time_is_sent_again(
    tmp_path: Path, memory: Memory, port: ShardPort
) -> None:
    """The first save is not common: the other ranks have the second one only."""
    mirrors = Mirrors(SECRET)
    mirrors.order(order(port.address))
    for number in (3, 4):
        path = write_shard(tmp_path / "mine", step=2, number=number)
        mirrors.saved(run(), 0, 2, path)
        deadline = time.monotonic() + 180.0
        while number not in {shard.number for shard in memory.shards() if shard.tier is Tier.PEER}:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    mirrors.close()


def test_a_machine_that_is_away_stops_nothing(tmp_path: Path, memory: Memory, port: ShardPort) -> None:
    """The failure is logged; another machine may be named at once."""
    mirrors = Mirrors(SECRET)
    mirrors.order(order("127.0.0.1:1"))
    mirrors.saved(run(), 0, 1, write_shard(tmp_path / "mine", step=1))
    mirrors.order(order(port.address))
    mirrors.saved(run(), 1, 2, write_shard(tmp_path / "mine", rank=1, step=2))
    until_has(memory, 2)
    mirrors.close()
    assert steps(memory) == {2}
