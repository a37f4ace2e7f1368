"""Machines that jobs had at once, and for how long: a pool is sized for busy hours, not for the hour it is sized in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from holdfast.models.history import Epoch

DAY_S = 86_400.0


def machine_days(epochs: Iterable[Epoch], since: float, now: float) -> dict[str, float]:
    """Return the days that each machine spent in epochs from ``since`` to ``now`` (Unix seconds)."""
    days: dict[str, float] = defaultdict(float)
    for epoch in epochs:
        spent = max(0.0, (epoch.closed_at or now) - max(epoch.opened_at, since)) / DAY_S
        for machine in epoch.machines:
            days[machine] += spent
    return dict(days)


def most_at_once(epochs: Iterable[Epoch], since: float, group_of: Callable[[str], str]) -> dict[str, int]:
    """Count the machines of each group that epochs had at the moment after ``since`` (Unix seconds) when most had some.

    A machine that two jobs' epochs name at one moment counts once. Groups without machines are left out.
    """
    changes: list[tuple[float, int, str]] = []
    for epoch in epochs:
        begun = max(epoch.opened_at, since)
        if epoch.closed_at is not None and epoch.closed_at <= begun:
            continue
        for machine in epoch.machines:
            changes.append((begun, 1, machine))
            if epoch.closed_at is not None:
                changes.append((epoch.closed_at, -1, machine))
    serving, now, most = Counter[str](), Counter[str](), Counter[str]()
    for _, change, machine in sorted(changes):  # at one moment those that end come first
        before = bool(serving[machine])
        serving[machine] += change
        group = group_of(machine)
        now[group] += bool(serving[machine]) - before
        most[group] = max(most[group], now[group])
    return dict(most)
