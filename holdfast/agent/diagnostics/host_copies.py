"""Transfers between a machine's memory and its GPUs, through PCIe, both ways; each byte compared.

One process per GPU, all at once as in a job; torch is imported inside the functions, as in
:mod:`holdfast.agent.diagnostics.check_process`. A machine without GPUs copies within its memory: that tests no
PCIe, and finds processors and memory that are slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.agent.diagnostics import computing
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart

if TYPE_CHECKING:
    import torch

NBYTES = 64 << 20
ROUNDS = 5


def pcie(part: CheckPart) -> CheckOutcome:
    """Copy a pattern to the device of this process and back."""
    return computing.compute_on(part, copies)


def copies(device: torch.device) -> CheckOutcome:
    """Return MB/s of the better round of :data:`ROUNDS`, to the device and back."""
    import torch  # noqa: PLC0415

    on_gpu = device.type == "cuda"
    made = torch.Generator().manual_seed(computing.SEED)
    given = torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, generator=made)
    taken = torch.zeros_like(given)
    if on_gpu:
        given, taken = given.pin_memory(), taken.pin_memory()
    there = torch.empty(NBYTES, dtype=torch.uint8, device=device)

    def round_trip() -> None:
        there.copy_(given, non_blocking=on_gpu)
        taken.copy_(there, non_blocking=on_gpu)

    round_trip()  # the first touches the pages
    seconds = min(_timed(round_trip, device) for _ in range(ROUNDS))
    wrong = int((taken != given).sum())
    return CheckOutcome(
        value=2 * NBYTES / seconds / 1e6,
        unit="MB/s",
        repeats=ROUNDS,
        host=not on_gpu,
        kind=computing.kind_of(device),
        wrong=f"{wrong} bytes came back damaged" if wrong else "",
    )


def _timed(work: Callable[[], None], device: torch.device) -> float:
    import torch  # noqa: PLC0415

    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.perf_counter() - started, math.ulp(1.0))
