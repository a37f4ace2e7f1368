"""Effective training time ratio: productive time / wall-clock time (BR section 8, MS; arXiv 2410.21680).

Productive is the time in which steps were done for the first time. Steps that were done before and had to be
done again are recomputation; what is left is restart, waiting and detection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pydantic import Field

from holdfast.errors import RefusedError
from holdfast.models.base import Frozen

DAY_S = 86_400.0
Interval = tuple[float, float]


class EpochLike(Protocol):
    """What is needed of :class:`~holdfast.models.history.Epoch`."""

    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def opened_at(self) -> float: ...  # noqa: D102
    @property
    def first_step(self) -> int | None: ...  # noqa: D102
    @property
    def first_step_at(self) -> float | None: ...  # noqa: D102
    @property
    def last_step(self) -> int | None: ...  # noqa: D102
    @property
    def last_step_at(self) -> float | None: ...  # noqa: D102


class Ettr(Frozen):
    """The ratio and what it is made of. Times in seconds."""

    ettr: float = Field(ge=0, le=1)
    productive_s: float
    wall_s: float
    steps_total: int
    """Steps done, each counted once."""
    steps_recomputed: int
    """Steps done again."""
    recompute_s: float
    restarts: int
    worst_gap_s: float
    """Longest stretch without a new step."""


class _Ran(Frozen):
    """One epoch that completed steps."""

    opened_at: float
    begun_at: float
    """When its first step began."""
    new_at: float
    """When its first new step began; equal to ``ended_at`` when it had none."""
    ended_at: float
    new: int
    again: int


def ettr(epochs: Sequence[EpochLike], now: float, *, since: float | None = None) -> Ettr:
    """ETTR of one job.

    Args:
        epochs: all its epochs.
        now: end of the wall-clock time (Unix seconds): the present, or when the job was done.
        since: begin of it; None: when the first epoch was opened.

    An epoch row knows its first and last step with their times; the steps between are taken as even.
    """
    rows = sorted(epochs, key=lambda row: row.epoch)
    if not rows:
        return _result([], 0, now, now)
    begin = rows[0].opened_at if since is None else since
    return _result(_runs(rows), len(rows) - 1, begin, max(begin, now))


def sliding(epochs: Sequence[EpochLike], now: float, window_s: float = 3600.0) -> float:
    """ETTR of the last ``window_s`` seconds, or of the job's life when that is shorter; 0 without epochs."""
    if not epochs:
        return 0.0
    begin = max(now - window_s, min(row.opened_at for row in epochs))
    return ettr(epochs, now, since=begin).ettr


def expected(machines: int, daily_rate: float, restart_s: float, interval_s: float, write_s: float) -> float:
    """Expected ETTR, (1 - N r (u0 + dt/2)) / (1 + w/dt), of arXiv 2410.21680; at least 0.

    Args:
        machines: N.
        daily_rate: r, failures per machine and day.
        restart_s: u0, time to detect and restart.
        interval_s: dt, time between checkpoints.
        write_s: w, time that writing one blocks training.

    Raises:
        RefusedError: ``interval_s`` is not positive, or another figure is negative.
    """
    if interval_s <= 0 or min(machines, daily_rate, restart_s, write_s) < 0:
        raise RefusedError(
            f"expected ETTR: machines = {machines}, daily_rate = {daily_rate}, restart_s = {restart_s}, "
            f"interval_s = {interval_s}, write_s = {write_s}; interval_s must be above 0, the others not below"
        )
    lost = machines * daily_rate / DAY_S * (restart_s + interval_s / 2)
    return max(0.0, 1 - lost) / (1 + write_s / interval_s)


def _runs(rows: Iterable[EpochLike]) -> list[_Ran]:
    listed = [row for row in rows if row.last_step is not None and row.first_step is not None]
    typical = _typical_step(listed)
    runs, reached = [], 0
    for row in listed:
        first, last = row.first_step or 0, row.last_step or 0
        first_at = row.first_step_at if row.first_step_at is not None else row.opened_at
        last_at = max(first_at, row.last_step_at if row.last_step_at is not None else first_at)
        # The first step has an end but no beginning: it takes as long as the others, within the epoch's life.
        step = (last_at - first_at) / (last - first) if last > first else typical
        begun = max(row.opened_at, first_at - step)
        new = max(0, last - max(reached, first - 1))
        new_at = last_at if not new else begun if new == last - first + 1 else last_at - new * step
        runs.append(
            _Ran(
                opened_at=row.opened_at,
                begun_at=begun,
                new_at=new_at,
                ended_at=last_at,
                new=new,
                again=last - first + 1 - new,
            )
        )
        reached = max(reached, last)
    return runs


def _typical_step(rows: Sequence[EpochLike]) -> float:
    """Mean duration of a step over all epochs, seconds; 0 when no epoch has two steps."""
    time = steps = 0.0
    for row in rows:
        if row.first_step_at is not None and row.last_step_at is not None:
            time += row.last_step_at - row.first_step_at
            steps += (row.last_step or 0) - (row.first_step or 0)
    return time / steps if steps else 0.0


def _result(runs: Sequence[_Ran], restarts: int, begin: float, end: float) -> Ettr:
    productive = [cut for run in runs if (cut := _cut((run.new_at, run.ended_at), begin, end))]
    again = [cut for run in runs if (cut := _cut((run.begun_at, run.new_at), begin, end))]
    useful, wall = _length(productive), end - begin
    return Ettr(
        ettr=min(1.0, useful / wall) if wall > 0 else 0.0,
        productive_s=useful,
        wall_s=wall,
        steps_total=sum(run.new for run in runs),
        steps_recomputed=sum(run.again for run in runs),
        recompute_s=_length(again),
        restarts=restarts,
        worst_gap_s=_worst_gap(productive, begin, end),
    )


def _cut(interval: Interval, begin: float, end: float) -> Interval | None:
    low, high = max(interval[0], begin), min(interval[1], end)
    return (low, high) if high > low else None


def _length(intervals: Iterable[Interval]) -> float:
    """Total of ``intervals``, overlaps once (clocks of two machines may disagree a little)."""
    total, reached = 0.0, float("-inf")
    for low, high in sorted(intervals):
        total += max(0.0, high - max(low, reached))
        reached = max(reached, high)
    return total


def _worst_gap(productive: Iterable[Interval], begin: float, end: float) -> float:
    worst, reached = 0.0, begin
    for low, high in sorted(productive):
        worst, reached = max(worst, low - reached), max(reached, high)
    return max(worst, end - reached)
