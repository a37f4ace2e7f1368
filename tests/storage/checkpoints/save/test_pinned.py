"""Slots that are registered with CUDA: no registration outlives its mapping, and a refused one leaves nothing behind.

No GPU is here. The stub has the two calls of CUDA's runtime that torch has, with the answers of the real ones.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.save import pinned
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter

pytestmark = pytest.mark.torch

ALREADY_REGISTERED, NOT_REGISTERED, PORTABLE = 712, 713, 1


class Runtime:
    """Knows what is registered."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.answer = 0
        self.devices: list[int] = []
        """Current ones, at each registration."""

    def register(self, address: int, nbytes: int, flags: int) -> int:
        """Register pages, unless they are registered or it is to refuse."""
        assert flags == PORTABLE
        self.devices.append(torch.cuda.current_device())
        if self.answer or address in self.pinned:
            return self.answer or ALREADY_REGISTERED
        self.pinned[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        """End a registration."""
        return 0 if self.pinned.pop(address, 0) else NOT_REGISTERED

    def __getattr__(self, name: str) -> Any:
        return {"cudaHostRegister": self.register, "cudaHostUnregister": self.unregister}[name]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each error that was taken from the runtime."""
    found: list[str] = []
    monkeypatch.setattr(pinned, "_take_error", lambda: found.append("taken"))
    return found


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, taken: list[str]) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(pinned, "_cuda_runtime", lambda: made)
    return made


def writer_of(folder: Path, numbers: int = 4000) -> ShardWriter:
    planned = make_plan({"weight": torch.zeros(numbers)}, folder, epoch=1, number=1)
    return ShardWriter(planned.layout, Owner("toy", 1, 0, 1), folder)


def test_a_writer_that_makes_way_for_the_next_plan_leaves_no_registration(
    tmp_path: Path, runtime: Runtime, taken: list[str]
) -> None:
    """Else the next mapping at its address would be copied into the pages of the old one."""
    writer = writer_of(tmp_path)
    writer.prepare()
    assert sorted(runtime.pinned.values()) == [writer.file_nbytes] * 2
    later = writer_of(tmp_path, 8000)
    later.prepare()
    del writer
    gc.collect()
    assert sorted(runtime.pinned.values()) == [later.file_nbytes] * 2
    del later
    gc.collect()
    assert (runtime.pinned, taken) == ({}, [])


def test_a_slot_that_is_given_up_leaves_no_registration(tmp_path: Path, runtime: Runtime) -> None:
    writer, state = writer_of(tmp_path), {"weight": torch.ones(4000)}
    writer.prepare()
    contents = writer.collect(state)
    assert contents is not None
    writer.start(contents, 1, in_place=True).run()
    gc.collect()
    assert list(runtime.pinned.values()) == [writer.file_nbytes]


def test_pages_that_cannot_be_registered_are_saved_to_all_the_same(
    tmp_path: Path, runtime: Runtime, taken: list[str]
) -> None:
    """The error is taken from the runtime: the next kernel of the training would raise it."""
    runtime.answer = ALREADY_REGISTERED
    writer = writer_of(tmp_path)
    writer.prepare()
    contents = writer.collect({"weight": torch.ones(4000)})
    assert contents is not None
    assert writer.save(contents, 1).exists()
    assert taken == ["taken"] * 2
    del writer
    gc.collect()
    assert taken == ["taken"] * 2, "what was not registered is not ended"


def test_a_fork_ends_no_registration_of_its_parent(runtime: Runtime) -> None:
    runtime.pinned[4096] = 1
    anyone = torch.device("cuda")
    pinned._unpin(4096, os.getpid() + 1, anyone)
    assert runtime.pinned
    pinned._unpin(4096, os.getpid(), anyone)
    assert not runtime.pinned


def test_pages_are_registered_by_the_gpu_of_the_group(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the script sets no current one: each rank of a machine would make a context on its first GPU."""
    current = [0]

    def change(device: int) -> int:
        before, current[0] = current[0], device
        return before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "_exchange_device", change)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", change)
    monkeypatch.setattr(pinned, "own_device", lambda: torch.device("cuda", 3))
    writer = writer_of(tmp_path)
    writer.prepare()
    assert runtime.devices == [3, 3]
    assert current == [0]
