"""Does the heat come back? Pure: facts in, verdict with its reasons out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.models.alert import Verdict


def judge(
    looks: Sequence[Mapping[str, Sequence[str]]], earlier: Mapping[str, int], settle_looks: int
) -> Verdict:
    """Accuse the machines that throttle after they had time to cool down, or that did so before.

    Args:
        looks: throttling GPUs by machine, at each look after the clocks were lowered.
        earlier: by machine, how often this was tried before and held only for a while.
        settle_looks: looks at the start that do not count: heat takes time to go.
    """
    again = {name: count for name, count in earlier.items() if count}
    if again:
        evidence = tuple(
            f"{name} was slowed down for heat {count} times of late" for name, count in again.items()
        )
        return Verdict(suspects=tuple(sorted(again)), confidence=0.9, evidence=evidence)
    hot = {name: gpus for look in looks[settle_looks:] for name, gpus in look.items() if gpus}
    evidence = tuple(f"{name}: {', '.join(gpus)} throttle with lowered clocks" for name, gpus in hot.items())
    return Verdict(suspects=tuple(sorted(hot)), confidence=0.9 if hot else 0.0, evidence=evidence)
