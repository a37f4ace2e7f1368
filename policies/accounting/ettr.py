"""Effective training time ratio: productive time / wall-clock time (ByteRobust section 8, MegaScale; arXiv 2410.21680).

Productive is the time in which steps were done for the first time, by the share of the wanted machines that did them.
What is left is lost, to one phase and one cause each (:mod:`holdfast.policies.accounting.lost_time`), but for the time
for which the job was scaled to zero by wish; the three add up to the wall-clock time exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from holdfast.errors import RefusedError
from holdfast.models.base import Frozen
from holdfast.models.history import History
from holdfast.policies.accounting import timeline
from holdfast.policies.accounting.lost_time import US, Account, LostPhase, account
from holdfast.policies.accounting.timeline import ActionLike, EpochLike, IncidentLike, StateLike, StretchLike

NO_STEPS = "not measured: no steps reported"
"""Shown in place of the ratio of a job that reports no steps: plain torchrun, or not yet at its first one."""
CLOCK_SET_BACK = "not measured: the clock was set back"
"""Shown in place of the ratio when the time asked for ends before the job began."""
DAY_S = 86_400.0
LATE_FACTOR = 3.0
"""A step that takes longer than this x the usual is late: until then no time is known to be lost."""


class Ettr(Frozen):
    """The ratio and its components. Times in seconds."""

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
    """Longest stretch without a new step while any was wanted."""
    zero_s: float = 0.0
    """Scaled to zero by wish: not part of the ratio."""
    account: Account
    """Every microsecond of it, by phase and incident class."""

    @property
    def unmeasured(self) -> str:
        """Why the ratio means nothing; empty where it was measured."""
        if self.steps_total + self.steps_recomputed == 0:
            return NO_STEPS
        return "" if self.wall_s > 0 else CLOCK_SET_BACK


def ettr(
    epochs: Sequence[EpochLike],
    now: float,
    *,
    since: float | None = None,
    stretches: Sequence[StretchLike] = (),
    incidents: Sequence[IncidentLike] = (),
    actions: Sequence[ActionLike] = (),
    states: Sequence[StateLike] = (),
    want: int = 0,
) -> Ettr:
    """Compute the ETTR of one job.

    Args:
        epochs: all its epochs.
        now: end of the wall-clock time (Unix seconds): the present, or when the job was done. A step that is
            under way and not late is not judged yet: then the time ends at the newest step.
        since: begin of it; None: when the first epoch was opened.
        stretches: from step reports. An epoch without any counts as even from its first to its last step.
        incidents: of this job.
        actions: of these incidents.
        states: the job's states, oldest first.
        want: machines that it wants now; 0: all sizes count in full.
    """
    rows = sorted(epochs, key=lambda row: row.epoch)
    if not rows:
        return _result(rows, Account(wall_us=0, productive_us=0))
    begin = min(row.opened_at for row in rows) if since is None else since
    end = max(begin, _end(rows, incidents, states, now))
    found = timeline.spans(rows, stretches, incidents, actions, states, end, want)
    return _result(rows, account(found, begin, end))


def measure(history: History, now: float, since: float | None = None) -> Ettr:
    """Compute the ETTR of a job from its history in the ledger; ``now`` and ``since`` as for :func:`ettr`."""
    return ettr(
        history.epochs,
        now,
        since=since,
        stretches=history.stretches,
        incidents=history.incidents,
        actions=history.actions,
        states=history.states,
        want=history.want,
    )


def sliding(history: History, now: float, window_s: float = 3600.0) -> Ettr:
    """Compute it over the last ``window_s`` seconds, or the job's life when that is shorter."""
    begin = min((row.opened_at for row in history.epochs), default=now)
    return measure(history, now, since=max(now - window_s, begin))


def expected(machines: int, daily_rate: float, restart_s: float, interval_s: float, write_s: float) -> float:
    """Compute the expected ETTR, (1 - N r (u0 + dt/2)) / (1 + w/dt), of arXiv 2410.21680; at least 0.

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


def _end(
    rows: Sequence[EpochLike], incidents: Sequence[IncidentLike], states: Sequence[StateLike], now: float
) -> float:
    """Return ``now``, or the time of the newest step when the next one is under way and not late."""
    newest = rows[-1]
    last, first = newest.last_step_at, newest.first_step_at
    if last is None or first is None or last >= now:
        return now
    if any(row.closed_at is None or row.closed_at > last for row in incidents):
        return now
    if any(change.at > last for change in states):
        return now
    steps = (newest.last_step or 0) - (newest.first_step or 0)
    late = LATE_FACTOR * (last - first) / steps if steps else 0.0
    return last if now - last <= late else now


def _steps(rows: Sequence[EpochLike]) -> tuple[int, int]:
    """Count steps done for the first time, and steps done again."""
    new = again = reached = 0
    for row in rows:
        if row.first_step is None or row.last_step is None:
            continue
        fresh = max(0, row.last_step - max(reached, row.first_step - 1))
        new, again = new + fresh, again + row.last_step - row.first_step + 1 - fresh
        reached = max(reached, row.last_step)
    return new, again


def _result(rows: Sequence[EpochLike], found: Account) -> Ettr:
    new, again = _steps(rows)
    return Ettr(
        ettr=found.ratio,
        productive_s=found.productive_us / US,
        wall_s=found.wall_us / US,
        steps_total=new,
        steps_recomputed=again,
        recompute_s=sum(row.us for row in found.lost if row.phase is LostPhase.RECOMPUTING) / US,
        restarts=max(0, len(rows) - 1),
        worst_gap_s=found.worst_us / US,
        zero_s=found.zero_us / US,
        account=found,
    )
