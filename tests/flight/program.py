"""A training step's communication in a parallel layout, with real process groups, and one fault underneath."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from tests.flight.labels import WORLD

FAULT_STEP = 3
ASKED, CUT = "cut-asked", "cut-made"
"""Files that are made."""


@dataclass(frozen=True)
class Fault:
    """One event on one rank."""

    kind: str
    rank: int
    at: str


def run(rank: int, store: str, mesh: dict[str, int], fault: Fault, tick: Callable[[], None]) -> None:
    """Train for ever, or until the fault."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    made = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    step = Step(rank, {name: made.get_group(name) for name in mesh}, fault, tick)
    step.folder = Path(store).parent
    while True:
        step.take()


class Step:
    """Forward, backward, optimizer: pipeline sends, tensor all-reduces, expert all-to-alls, gradient all-reduces."""

    def __init__(self, rank: int, groups: dict[str, Any], fault: Fault, tick: Callable[[], None]) -> None:
        self.rank, self.groups, self.fault, self.tick = rank, groups, fault, tick
        self.number, self.folder = 0, Path()
        ranks = dist.get_process_group_ranks(groups["pp"]) if "pp" in groups else [rank]
        self.stage, self.stages = ranks.index(rank), ranks

    def take(self) -> None:
        """One step."""
        self.number += 1
        for _ in range(2):
            self._pass("forward", self.stage - 1, self.stage + 1)
            self._pass("backward", self.stage + 1, self.stage - 1)
        self._may_fail("optimizer")
        if self._due("order", "optimizer"):
            self._reduce("world")
        if "dp" in self.groups:
            works = [self._reduce("dp", async_op=True) for _ in range(2)]
            for work in works:
                if work is not None:
                    work.wait()
        self._reduce("world")
        self.tick()

    def _pass(self, name: str, source: int, target: int) -> None:
        if 0 <= source < len(self.stages):
            dist.recv(self._tensor(), src=self.stages[source])
        self._may_fail(name)
        for _ in range(2):
            self._layer(name)
        if 0 <= target < len(self.stages):
            dist.send(self._tensor(), dst=self.stages[target])

    def _layer(self, name: str) -> None:
        if "tp" in self.groups:
            self._reduce("tp", name)
        if "ep" in self.groups:
            dist.all_to_all_single(self._tensor(), self._tensor(), group=self.groups["ep"])
            self.tick()

    def _reduce(self, where: str, name: str = "optimizer", async_op: bool = False) -> Any:
        group = self.groups.get(where)
        if self._due("skip", name):
            return None
        if self._due("mismatch", name):
            parts = [self._tensor() for _ in range(dist.get_world_size(group))]
            return dist.all_gather(parts, self._tensor(), group=group)
        done = dist.all_reduce(self._tensor(), group=group, async_op=async_op)
        self.tick()
        return done

    def _due(self, kind: str, name: str) -> bool:
        """Once: the first collective of the place in the step of the fault."""
        due = self.fault == Fault(kind, self.rank, name) and self.number >= FAULT_STEP
        if due:
            self.fault = Fault("", -1, "")
        return due

    def _may_fail(self, name: str) -> None:
        if self._due("stall", name):
            time.sleep(3600)
        if self._due("spin", name):
            spin()
        if self._due("link", name):
            self.wait_for_cut()
        if self._due("lock", name):
            lock()
        if self._due("loader", name):
            next(iter(DataLoader([0], num_workers=1, collate_fn=load)))
        if self._due("stop", name):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._due("kill", name):
            os.kill(os.getpid(), signal.SIGKILL)

    def wait_for_cut(self) -> None:
        """Ask for the cut of the connection to the rank from which this one received, and wait until it is made."""
        (self.folder / ASKED).touch()
        while not (self.folder / CUT).exists():
            time.sleep(0.01)

    def _tensor(self) -> Any:
        return torch.ones(WORLD)


def spin() -> None:
    """Compute and never end."""
    while True:
        torch.ones(64, 64) @ torch.ones(64, 64)


def lock() -> None:
    """Take a lock twice."""
    mutex = threading.Lock()
    for _ in range(2):
        mutex.acquire()


def load(items: list[int]) -> list[int]:
    """Read an item of the data, in a worker; never ends."""
    time.sleep(3600)
    return items
