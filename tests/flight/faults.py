"""Faults: acts of ranks at a named place instead of going on."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.flight.layouts import LAYOUTS
from tests.flight.program import load, lock, spin

STEP = 3


def sleep() -> None:
    """Wait for nothing."""
    time.sleep(3600)


def stop() -> None:
    """Be stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """End with success."""
    sys.stdout.flush()
    os._exit(0)


def loader() -> None:
    """Wait for a worker of the data loader."""
    data: Any = [0]
    next(iter(DataLoader(data, num_workers=1, collate_fn=load)))


def service() -> None:
    """Wait for the answer of a service that took the connection."""
    ours, theirs = socket.socketpair()
    ours.recv(1)
    theirs.close()


def child() -> None:
    """Wait for a command."""
    subprocess.run(["sleep", "3600"], check=True)


def barrier() -> None:
    """Wait for all others in a barrier that they do not come to."""
    dist.barrier()


KINDS: dict[str, Callable[[], None]] = {
    made.__name__: made for made in (sleep, stop, kill, leave, loader, service, child, barrier, spin, lock)
}


def places(faults: list[list[str | int]], rank: int, number: Callable[[], int]) -> Callable[[str], bool]:
    """Return what is called at every place: it fails there once, in the step of the fault or later.

    Args:
        faults: rank, kind and place of each, and its step where that is another; ``skip`` is left to the caller.
        rank: of this process.
        number: of the step that is under way.
    """
    mine = [fault for fault in faults if fault[0] == rank]

    def at(place: str) -> bool:
        for fault in mine:
            _, kind, where, *step = fault
            if where == place and number() >= (int(step[0]) if step else STEP):
                mine.remove(fault)
                if kind == "skip":
                    return True
                KINDS[str(kind)]()
                return False
        return False

    return at


def train(rank: int, store: str, label: dict[str, Any], tick: Callable[[], None]) -> None:
    """Take steps of a layout for ever, or until the fault."""
    torch.set_num_threads(1)
    world = math.prod(label["mesh"].values())
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    number = 0
    step = LAYOUTS[label["layout"]](label["mesh"], places(label["faults"], rank, lambda: number))
    while True:
        number += 1
        step()
        tick()
