"""Plan of faults and their times, from a seed. Pure: the same seed, faults and layout give the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence

from holdfast.errors import SettingsError
from holdfast.models.base import Frozen

RANKS = ("kill-rank", "stop-rank", "hang-rank")
REPLICAS = ("kill-replica",)
MACHINES = ("kill-agent", "stop-agent", "kill-machine", "xid-79")
SERVICES = tuple(
    f"{verb}-{name}" for name in ("gateway", "worker", "prefect", "s3") for verb in ("kill", "stop")
)
DATABASE = "lock-database"
FAULTS = (*RANKS, *REPLICAS, *MACHINES, *SERVICES, DATABASE)
"""All by name."""
LASTING = ("stop-rank", "stop-agent", DATABASE, *(name for name in SERVICES if name.startswith("stop-")))
"""Undone after a while; the others are for good."""
COSTLY = ("hang-rank", "kill-agent", "kill-machine", "xid-79")
"""The job loses the machine and needs a standby; that of a hang, when its rank hung there before."""


class Strike(Frozen):
    """One moment of the plan: a fault, or a pair at once."""

    at_s: float
    """Since the start."""
    faults: tuple[str, ...]
    slots: tuple[int, ...]
    """Which of the job's machines, by slot, for each fault; services do not ask."""
    local_ranks: tuple[int, ...]
    """Which rank of that machine, for each fault."""
    hold_s: float
    """How long what is stopped stays so."""


def parse(text: str) -> tuple[tuple[str, ...], ...]:
    """Parse a list of faults separated by commas, pairs by a plus.

    Raises:
        SettingsError: one is unknown, or one of a pair is named twice.
    """
    groups = tuple(
        tuple(part.strip() for part in group.split("+")) for group in text.split(",") if group.strip()
    )
    for group in groups:
        for name in group:
            if name not in FAULTS:
                raise SettingsError(
                    f"--faults: {name!r} is no fault. Faults: {', '.join(FAULTS)}; pairs: A+B."
                )
        if len(set(group)) < len(group):
            raise SettingsError(f"--faults: {'+'.join(group)} names one fault twice.")
    if not groups:
        raise SettingsError(f"--faults is empty. Faults: {', '.join(FAULTS)}; pairs: A+B.")
    return groups


def make(
    groups: Sequence[tuple[str, ...]],
    *,
    every_s: float,
    for_s: float,
    hold_s: float,
    seed: int,
    machines: int,
    ranks_per_machine: int,
) -> tuple[Strike, ...]:
    """Plan a fault every ``every_s`` until ``for_s``. Each of ``groups`` comes once before any comes again."""
    dice = random.Random(seed)
    plan: list[Strike] = []
    left: list[tuple[str, ...]] = []
    at_s = every_s
    while at_s <= for_s:
        if not left:
            left = list(groups)
            dice.shuffle(left)
        faults = left.pop()
        # Two of a pair on two machines, where there are two.
        first = dice.randrange(machines)
        plan.append(
            Strike(
                at_s=at_s,
                faults=faults,
                slots=tuple((first + number) % machines for number in range(len(faults))),
                local_ranks=tuple(dice.randrange(ranks_per_machine) for _ in faults),
                hold_s=round(hold_s * dice.uniform(0.5, 1.0), 3),
            )
        )
        at_s += every_s
    return tuple(plan)
