"""Dual-phase replay: find a faulty machine by running the job in two different groupings.

Source: ByteRobust section 4. Machines 0..M-1. Phase 1 replays horizontal groups x // m, phase 2 vertical groups
x mod n; a machine is suspect when its group failed in both. With m <= n every pair of groups shares at most
one machine, because m consecutive numbers have m different remainders. m = k * pp for a whole k, so that a
group still holds whole pipelines.

The paper does not define the cases off the grid; here:

* M need not be m * n: n is M / m rounded up, the last horizontal group is smaller, and vertical groups differ
  in size by at most one. Every machine is in exactly one group per phase. A k for which m divides M is
  preferred, then the largest.
* pp > sqrt(M): no k gives m <= n. Then k = 1 and a pair of groups shares up to ceil(m / n) machines.
* A replay that fails in neither, one or all groups has its own :class:`ReplayOutcome`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from holdfast.errors import RefusedError
from holdfast.models.base import Frozen


class ReplayOutcome(StrEnum):
    """Result of the two phases."""

    FOUND = "found"
    """One machine is in the failing groups of both phases."""
    NARROWED = "narrowed"
    """One failing group per phase, and they share several machines (m > n)."""
    SEVERAL = "several"
    """Several groups failed: several machines, some of the suspects may be healthy."""
    NOT_REPRODUCED = "not_reproduced"
    """No group failed in either phase."""
    COMMON_CAUSE = "common_cause"
    """Every group failed in both phases: code or data, not a machine."""
    FLAKY = "flaky"
    """The phases contradict each other: the fault comes and goes."""
    INSEPARABLE = "inseparable"
    """Too few groups to compare: the only one failed, or two differ."""


class ReplayPlan(Frozen):
    """Groups of machine numbers, one list per phase."""

    machines: int
    m: int
    """Machines in a horizontal group."""
    n: int
    """Number of vertical groups."""
    horizontal: tuple[tuple[int, ...], ...]
    vertical: tuple[tuple[int, ...], ...]
    unique: bool
    """A single faulty machine is always found."""


class ReplayVerdict(Frozen):
    """Machines (by number) to suspect."""

    outcome: ReplayOutcome
    suspects: tuple[int, ...] = ()
    confidence: float = 0.0
    reasons: tuple[str, ...]


class Next(StrEnum):
    """The next act after a replay."""

    EVICT = "evict"
    BLAME_CODE = "blame_code"
    AGAIN = "again"
    NO_SUSPECT = "nobody"


class ReplayDecision(Frozen):
    """The next act after a replay, and why."""

    next: Next
    suspects: tuple[int, ...] = ()
    reason: str


def decide(  # noqa: PLR0911  (a table)
    verdict: ReplayVerdict, limit: int, repeats_left: int
) -> ReplayDecision:
    """Decide on every outcome, the degenerate ones included.

    Args:
        verdict: of the groups that failed in all rounds so far, taken together.
        limit: most machines that may be evicted at once.
        repeats_left: rounds that may still be run.
    """
    named = verdict.suspects
    match verdict.outcome:
        case ReplayOutcome.FOUND:
            return ReplayDecision(next=Next.EVICT, suspects=named, reason="found")
        case ReplayOutcome.NARROWED | ReplayOutcome.SEVERAL if len(named) <= limit:
            return ReplayDecision(next=Next.EVICT, suspects=named, reason="the faulty are among them")
        case ReplayOutcome.NARROWED | ReplayOutcome.SEVERAL:
            return ReplayDecision(
                next=Next.NO_SUSPECT,
                reason=f"{len(named)} suspects, more than the limit of {limit}: a human decides",
            )
        case ReplayOutcome.COMMON_CAUSE:
            return ReplayDecision(
                next=Next.BLAME_CODE, reason="every group fails: code or data, not a machine"
            )
        case ReplayOutcome.INSEPARABLE:
            return ReplayDecision(
                next=Next.NO_SUSPECT, reason="too few machines to distinguish one from the code"
            )
        case _ if repeats_left > 0:
            return ReplayDecision(next=Next.AGAIN, reason=f"{verdict.outcome.value}: once more")
        case ReplayOutcome.FLAKY:
            return ReplayDecision(
                next=Next.NO_SUSPECT, reason="intermittent: no machine is certain to be at fault"
            )
        case _:
            return ReplayDecision(next=Next.NO_SUSPECT, reason="not reproduced")


def plan(machines: int, pp: int = 1) -> ReplayPlan:
    """Group ``machines`` for a job whose pipeline spans ``pp`` machines.

    Raises:
        RefusedError: fewer machines than one pipeline needs.
    """
    if pp < 1 or machines < pp:
        raise RefusedError(
            f"replay plan: machines = {machines}, pp = {pp}; expected 1 <= pp <= machines. "
            "Replay needs at least one whole pipeline."
        )
    m = _group_size(machines, pp)
    n = -(-machines // m)
    numbers = range(machines)
    return ReplayPlan(
        machines=machines,
        m=m,
        n=n,
        horizontal=tuple(tuple(numbers[start : start + m]) for start in range(0, machines, m)),
        vertical=tuple(tuple(numbers[start::n]) for start in range(n)),
        unique=m <= n,
    )


def _group_size(machines: int, pp: int) -> int:
    """Return m: the largest k * pp with m <= n, preferably one that divides the machines into full groups.

    A single machine per group would test no connection, so m = 1 counts as full only when nothing else fits.
    """
    fitting = [m for m in range(pp, machines + 1, pp) if m <= -(-machines // m)]
    full = [m for m in fitting if machines % m == 0 and m > 1]
    return max(full or fitting, default=pp)


def suspects(replay: ReplayPlan, failed_h: Collection[int], failed_v: Collection[int]) -> ReplayVerdict:
    """Intersect the failing groups.

    Args:
        replay: the plan that was run.
        failed_h: indices of horizontal groups that failed.
        failed_v: indices of vertical groups that failed.

    Raises:
        RefusedError: an index names no group of the plan.
    """
    h, v = _checked(failed_h, replay.horizontal, "h"), _checked(failed_v, replay.vertical, "v")
    seen = f"failed: {len(h)} of {len(replay.horizontal)} horizontal, {len(v)} of {len(replay.vertical)} vertical"
    if degenerate := _degenerate(replay, h, v):
        outcome, why = degenerate
        return ReplayVerdict(outcome=outcome, reasons=(seen, why))
    both = {x for a in h for x in replay.horizontal[a]} & {x for b in v for x in replay.vertical[b]}
    found = tuple(sorted(both))
    if not found or not _explains(replay, found, h, v):
        return ReplayVerdict(
            outcome=ReplayOutcome.FLAKY,
            suspects=found,
            confidence=0.2 if found else 0.0,
            reasons=(seen, "some failing group holds no machine that failed in the other phase as well"),
        )
    if len(h) == len(v) == 1:
        outcome = ReplayOutcome.FOUND if len(found) == 1 else ReplayOutcome.NARROWED
        why = f"horizontal group {h[0]} and vertical group {v[0]} share machines {list(found)}"
        return ReplayVerdict(
            outcome=outcome, suspects=found, confidence=0.95 / len(found), reasons=(seen, why)
        )
    # Machines in one row or column of the grid are separated exactly; otherwise corners of healthy ones remain.
    exact = replay.unique and (len(h) == 1 or len(v) == 1)
    return ReplayVerdict(
        outcome=ReplayOutcome.SEVERAL,
        suspects=found,
        confidence=0.8 if exact else 0.5,
        reasons=(seen, f"machines {list(found)} lie in failing groups of both phases"),
    )


def alone(odd: Collection[int]) -> ReplayVerdict:
    """Return the verdict when each machine was its own group, and ``odd`` ones computed something else each time."""
    found = tuple(sorted(odd))
    if not found:
        why = "replayed alone twice, no machine computes other results than most"
        return ReplayVerdict(outcome=ReplayOutcome.FLAKY, reasons=(why,))
    outcome = ReplayOutcome.FOUND if len(found) == 1 else ReplayOutcome.SEVERAL
    why = f"replayed alone, machines {list(found)} compute other results than all others, twice"
    return ReplayVerdict(outcome=outcome, suspects=found, confidence=0.95 / len(found), reasons=(why,))


def _checked(failed: Collection[int], groups: tuple[tuple[int, ...], ...], letter: str) -> list[int]:
    for index in failed:
        if not 0 <= index < len(groups):
            raise RefusedError(
                f"replay verdict: failed_{letter} holds {index}; expected 0 to {len(groups) - 1}, "
                "the indices of the plan's groups"
            )
    return sorted(set(failed))


def _degenerate(replay: ReplayPlan, h: list[int], v: list[int]) -> tuple[ReplayOutcome, str] | None:
    if not h and not v:
        return ReplayOutcome.NOT_REPRODUCED, "no group failed: not reproduced"
    if not h or not v:
        phase = "vertical" if v else "horizontal"
        return ReplayOutcome.FLAKY, f"only the {phase} phase failed: the fault is intermittent, replay again"
    if len(h) < len(replay.horizontal) or len(v) < len(replay.vertical):
        return None
    if len(replay.vertical) == 1:
        return (
            ReplayOutcome.INSEPARABLE,
            "there is only one group: a machine cannot be distinguished from code or data",
        )
    return ReplayOutcome.COMMON_CAUSE, "every group failed in both phases: code or data, not a machine"


def _explains(replay: ReplayPlan, found: tuple[int, ...], h: list[int], v: list[int]) -> bool:
    """Return whether every failing group holds a suspect."""
    return all(set(replay.horizontal[a]) & set(found) for a in h) and all(
        set(replay.vertical[b]) & set(found) for b in v
    )
