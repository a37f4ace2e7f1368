"""Times saves and restores on a GPU: ``python -m benchmarks.gpu_saves FOLDER GIB TENSOR_MIB ROUNDS STEP_S...``.

Prints JSON. Beside each stands a plain copy of the same bytes between the GPU and pinned memory. Steps compute on the
GPU alone, ``STEP_S`` seconds each, and read a number of the result, as training loops do with the loss; blocks of steps
with a save at each alternate with blocks without.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import host
from benchmarks.session_cost import session_in
from holdfast.session.restore import restore
from holdfast.session.session import Session
from holdfast.storage.checkpoints.save import buffers

WINDOW_NBYTES = 1 << 30
"""Of pinned memory that plain copies go through, again and again."""
WARM, STEPS = 2, 4
SIDE = 8192
"""Of the matrices of a step."""


class Model(nn.Module):
    """A state of ``nbytes``, with an optimizer that has none of its own and nothing to update."""

    def __init__(self, nbytes: int, each: int, device: torch.device) -> None:
        super().__init__()
        numbers = min(each, nbytes) // 4
        self.parts = nn.ParameterList(
            torch.full((numbers,), float(number), device=device) for number in range(nbytes // 4 // numbers)
        )


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Plain:
    """Copies between a state and pinned memory."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        nbytes = min(WINDOW_NBYTES, sum(each.nbytes for each in tensors))
        window = torch.empty(nbytes // 4, pin_memory=device.type == "cuda")
        places = window.split(tensors[0].numel())
        self._pairs = [(each, places[number % len(places)]) for number, each in enumerate(tensors)]
        self._device = device

    def seconds(self, *, to_host: bool) -> float:
        """Copy all once; return how long it took."""
        synchronize(self._device)
        begun = time.perf_counter()
        with torch.no_grad():
            for on_device, on_host in self._pairs:
                target, source = (on_host, on_device) if to_host else (on_device, on_host)
                target.copy_(source, non_blocking=True)
        synchronize(self._device)
        return time.perf_counter() - begun


class Computing:
    """Steps of a given length."""

    def __init__(self, step_s: float, device: torch.device) -> None:
        side = SIDE if device.type == "cuda" else 256
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._one = torch.full((side, side), 0.01, dtype=kind, device=device)
        self._device, self._products = device, 1
        self._multiply(1)
        for _ in range(2):  # the second time at the clock that the first one led to
            self._products = max(1, round(self._products * step_s / self._multiply(self._products)))

    def step(self) -> None:
        """Hand the GPU one step, but for its end."""
        for _ in range(self._products):
            self._last = self._one @ self._one

    def loss(self) -> float:
        """Return a number of the step's result: waits for it."""
        return self._last[0, 0].item()

    def _multiply(self, products: int) -> float:
        synchronize(self._device)
        begun = time.perf_counter()
        self._products = products
        self.step()
        synchronize(self._device)
        return time.perf_counter() - begun


def saves(
    session: Session, state: dict[str, Any], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of saves beside nothing else: the call, until the copy has ended, until the save is complete."""
    optimizer = state["optimizer"]
    found: dict[str, list[float]] = {"call_s": [], "copy_s": [], "whole_s": []}
    for step in range(2, WARM + rounds + 2):
        optimizer.step()
        synchronize(device)
        begun = time.perf_counter()
        session.step(step)
        session.checkpoint(state)
        called = time.perf_counter()
        session.wait()
        synchronize(device)
        copied = time.perf_counter()
        session.flush()
        if step > WARM + 1:
            found["call_s"].append(called - begun)
            found["copy_s"].append(copied - begun)
            found["whole_s"].append(time.perf_counter() - begun)
    return found


def beside(
    session: Session, state: dict[str, Any], rounds: int, computing: Computing, begin: int
) -> dict[str, Any]:
    """Per cent of a step's time that saves hold it up for, and that steps with saves take longer."""
    optimizer, step = state["optimizer"], begin
    held: list[float] = []
    lost: list[float] = []
    plain: list[float] = []
    before = session.counts

    def block(*, save: bool) -> tuple[float, float]:
        nonlocal step
        held_s, begun = 0.0, time.perf_counter()
        for _ in range(STEPS):
            step += 1
            computing.step()
            optimizer.step()
            held_s += session._saver.take_stall()
            computing.loss()
            session.step(step)
            if save:
                at = time.perf_counter()
                session.checkpoint(state)
                held_s += time.perf_counter() - at
        computing.step()
        optimizer.step()
        computing.loss()  # one step more, beside which the last copy runs
        spent = (time.perf_counter() - begun) / (STEPS + 1)
        session.flush()
        return spent, held_s / (STEPS + 1)

    saved, skipped = before.saved, before.skipped
    for turn in range(rounds):
        spent = {save: block(save=save) for save in ((True, False) if turn % 2 else (False, True))}
        lost.append(100 * (1 - spent[False][0] / spent[True][0]))
        held.append(100 * spent[True][1] / spent[True][0])
        plain.append(spent[False][0])
    return {
        "held": held,
        "lost": lost,
        "step_s": statistics.median(plain),
        "saved": session.counts.saved - saved,
        "skipped": session.counts.skipped - skipped,
    }


def restored(state: dict[str, Any], folder: Path, rounds: int, device: torch.device) -> list[float]:
    """Seconds of restores from the newest shard, every byte of it verified."""
    path = buffers.inventory(folder)[-1][0]
    found = []
    for _ in range(rounds):
        synchronize(device)
        begun = time.perf_counter()
        restore(state, path, 0)
        synchronize(device)
        found.append(time.perf_counter() - begun)
    return found


def main(folder: Path, gib: float, tensor_mib: float, rounds: int, *steps_s: float) -> dict[str, Any]:
    """Everything of one size, beside steps of each length."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Model(int(gib * (1 << 30)), int(tensor_mib * (1 << 20)), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tensors = [each.detach() for each in model.parts]
    state = {"model": model, "optimizer": optimizer}
    plain = Plain(tensors, device)
    plain.seconds(to_host=True)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "host": host(),
        "nbytes": sum(each.nbytes for each in tensors),
        "tensors": len(tensors),
        "plain_to_host_s": [plain.seconds(to_host=True) for _ in range(rounds)],
    }
    with session_in(folder) as session:
        session.restore(state)
        begun = time.perf_counter()
        session.step(1)
        session.checkpoint(state)
        found["first_call_s"] = time.perf_counter() - begun
        session.flush()
        found |= saves(session, state, rounds, device)
        number, found["beside"] = WARM + rounds + 2, []
        for step_s in steps_s:
            found["beside"].append(beside(session, state, min(rounds, 4), Computing(step_s, device), number))
            number += 1000
        session.close(10)
    found["restore_s"] = restored(state, folder, min(rounds, 2), device)
    found["plain_to_device_s"] = [plain.seconds(to_host=False) for _ in range(rounds)]
    return found


if __name__ == "__main__":
    where, size, tensor, count, *lengths = sys.argv[1:]
    print(json.dumps(main(Path(where), float(size), float(tensor), int(count), *map(float, lengths))))
