"""From costs at some sizes to the cost at a size that was not measured: a straight line, and the first limit on it."""

from __future__ import annotations

from collections.abc import Mapping


def at_size(costs: Mapping[int, float], size: int) -> float:
    """The least-squares line through ``costs`` (by machines) at ``size``; a single cost grows in proportion."""
    if len(costs) < 2:
        return sum(cost / machines * size for machines, cost in costs.items())
    mean_x = sum(costs) / len(costs)
    mean_y = sum(costs.values()) / len(costs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in costs.items()) / sum((x - mean_x) ** 2 for x in costs)
    return max(0.0, mean_y + slope * (size - mean_x))


def first_to_break(far: Mapping[str, tuple[float, float, str]], size: int) -> str:
    """Which costs (name to value at ``size``, limit, unit) are beyond their limit there, the worst first."""
    over = sorted(
        ((value / limit, name, value, limit, unit) for name, (value, limit, unit) in far.items()),
        reverse=True,
    )
    broken = [
        f"{name} ({value:.3g} {unit}, limit {limit:g}: {times:.1f} times)"
        for times, name, value, limit, unit in over
        if times > 1
    ]
    return f"At {size:,} machines first to break: {'; then '.join(broken) or 'nothing of this'}."
