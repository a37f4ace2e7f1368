"""Timed rounds of a collective: as many bytes as reach bandwidth, and no more than a slow link carries in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.agent.diagnostics.check_part import PATIENCE_S, CheckOutcome

if TYPE_CHECKING:
    import torch

CHECKED_BYTES = 1 << 20
"""Of which every byte is compared."""
MOST_BYTES = 64 << 20
"""Of a timed round: payloads that reach bandwidth ..."""
ROUND_S = 0.01
"""... in rounds of about this long: slow links get smaller ones."""
ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """The best of several rounds."""

    nbytes: int
    """Of what each process gave."""
    seconds: float
    """0: not measured."""
    repeats: int
    host: bool

    def outcome(self, share: float) -> CheckOutcome:
        """Return MB/s of the ``share`` of what each process gave that it received from others."""
        if not self.seconds:
            return CheckOutcome(host=self.host)
        rate = share * self.nbytes / self.seconds / 1e6
        return CheckOutcome(value=rate, unit="MB/s", repeats=self.repeats, host=self.host)


def measured(
    exchange: Callable[[tuple[torch.Tensor, torch.Tensor]], object],
    checked: tuple[torch.Tensor, torch.Tensor],
    device: torch.device,
    measure: bool,
) -> Measured:
    """Exchange the bytes to be compared. To ``measure``: exchange them again (the first time connects), then rounds of
    as many bytes as fit a round's time; all processes agree on how many, by the slowest.
    """
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    host = device.type != "cuda"
    connect_s = _timed(lambda: exchange(checked), device)
    if not measure:
        return Measured(checked[0].numel(), 0.0, 0, host)
    if _slowest(connect_s, device) > PATIENCE_S:
        return Measured(checked[0].numel(), connect_s, 1, host)
    seconds = _slowest(_timed(lambda: exchange(checked), device), device)
    times = int(min(MOST_BYTES / CHECKED_BYTES, max(1.0, ROUND_S / seconds)))
    much = tuple(torch.zeros(times * each.numel(), dtype=torch.uint8, device=device) for each in checked)
    rounds = []
    for _ in range(ROUNDS):
        dist.barrier()
        rounds.append(_timed(lambda: exchange((much[0], much[1])), device))
    return Measured(much[0].numel(), min(rounds), ROUNDS, host)


def _slowest(seconds: float, device: torch.device) -> float:
    """Return the longest of all processes' times."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    longest = torch.tensor([seconds], device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def _timed(collective: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one round."""
    import torch  # noqa: PLC0415

    started = time.perf_counter()
    collective()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.perf_counter() - started, 1e-9)
