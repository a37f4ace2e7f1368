"""Collectives on a known pattern, every byte compared: inside one machine, and between two.

Torch is imported inside the functions, as in :mod:`holdfast.agent.diagnostics.check_process`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.agent.diagnostics import check_group, pair_turns, rounds
from holdfast.agent.diagnostics.check_part import CheckOutcome, CheckPart

if TYPE_CHECKING:
    import torch


def all_to_all(part: CheckPart) -> CheckOutcome:
    """Send a different pattern from every process to every other."""
    return check_group.in_group(part, _all_to_all)


def all_gather(part: CheckPart) -> CheckOutcome:
    """Send the pattern of every process to all others; two machines do it with each of their GPUs in turn."""
    return pair_turns.in_turn(part, _all_gather) if part.port else check_group.in_group(part, _all_gather)


def _all_to_all(part: CheckPart, device: torch.device) -> CheckOutcome:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    nbytes = rounds.CHECKED_BYTES // part.size
    others = range(part.size)
    given = torch.cat([_pattern(part.rank, other, nbytes) for other in others]).to(device)
    taken = torch.empty_like(given)
    measured = rounds.measured(
        lambda much: dist.all_to_all_single(much[1], much[0]), (given, taken), device, part.measure
    )
    chunks = taken.cpu().reshape(part.size, nbytes)
    wrong = {source: _wrong(chunks[source], _pattern(source, part.rank, nbytes)) for source in others}
    return replace(measured.outcome((part.size - 1) / part.size), wrong_bytes=_only_bad(wrong))


def _all_gather(part: CheckPart, device: torch.device) -> CheckOutcome:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    given = _pattern(part.rank, 0, rounds.CHECKED_BYTES).to(device)
    taken = torch.empty(part.size * rounds.CHECKED_BYTES, dtype=torch.uint8, device=device)

    def gather(much: tuple[torch.Tensor, torch.Tensor]) -> None:
        dist.all_gather(list(much[1].chunk(part.size)), much[0])

    measured = rounds.measured(gather, (given, taken), device, part.measure)
    wrong = {
        source: _wrong(chunk.cpu(), _pattern(source, 0, rounds.CHECKED_BYTES))
        for source, chunk in enumerate(taken.chunk(part.size))
    }
    return replace(measured.outcome(part.size - 1), wrong_bytes=_only_bad(wrong))


def _pattern(source: int, target: int, nbytes: int) -> torch.Tensor:
    """Return bytes that differ with their place, sender and receiver; any shift or swap shows."""
    import torch  # noqa: PLC0415

    # Of place p: 31 p + 17 (p // 256) + 7 source + 13 target + 1, in bytes that wrap round.
    page = torch.arange(256).mul_(31).add_(source * 7 + target * 13 + 1).to(torch.uint8)
    pages = torch.arange(-(-nbytes // 256)).mul_(17).to(torch.uint8)
    return (pages.unsqueeze(1) + page).flatten()[:nbytes]


def _wrong(got: torch.Tensor, expected: torch.Tensor) -> int:
    return int((got != expected).sum())


def _only_bad(wrong: dict[int, int]) -> dict[int, int]:
    return {rank: count for rank, count in wrong.items() if count}
