"""Many names in one readable line."""

from __future__ import annotations

from collections.abc import Iterable


def join_names(items: Iterable[object], most: int = 8) -> str:
    """Join the first ``most`` of ``items``, and count the others: ``m0, m1 and 748 more``; ``none`` for none."""
    names = [str(item) for item in items]
    if not names:
        return "none"
    joined = ", ".join(names[:most])
    return joined if len(names) <= most else f"{joined} and {len(names) - most} more"
