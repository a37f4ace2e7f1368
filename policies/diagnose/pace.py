"""Machines that are slower than their equals, or than they were: judged from the values that checks measured.

A check's value is a cost (seconds) or a rate (its unit ends in ``/s``). A machine is compared with all others of one
check on one kind of hardware, by median and median absolute deviation, and with what it measured itself before. A
transfer between two machines counts for each by its best pair, so that a neighbour of a slow one is not slow. MegaScale
(NSDI'24, section 5) found hosts about 10 % slow in this way.

Where machines, repeats or quiet are too few the verdict is "not known", which accuses no machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from pydantic import Field

from holdfast.models.alert import Finding
from holdfast.models.base import Frozen
from holdfast.policies.join_names import join_names


class PaceLimits(Frozen):
    """Limits of a cost, beside ``slow_factor`` times the median of at least :attr:`machines`."""

    slightly: float = Field(default=1.06, gt=1)
    """Against the median of at least :attr:`machines_slightly`, and :attr:`deviations` off: slow as well."""
    deviations: float = Field(default=6.0, gt=0)
    least_deviation: float = Field(default=0.01, gt=0)
    """A deviation is at least this share of the median: a few equal values are no certainty."""
    machines: int = Field(default=3, ge=3)
    machines_slightly: int = Field(default=5, ge=3)
    repeats: int = Field(default=3, ge=1)
    """With fewer measurements only what is :attr:`grossly` slow counts."""
    grossly: float = Field(default=5.0, gt=1)
    busy: float = Field(default=0.3, ge=0, le=1)
    """A host whose processors others use more than this is not judged by measurements of its processors."""
    than_before: float = Field(default=1.3, gt=1)
    """Against the machine's own earlier values, of which there are at least :attr:`earlier`: slow."""
    earlier: int = Field(default=5, ge=1)


MOST_SHARE = 1 / 3
"""Share of machines: when more than this would be slow, the others are as likely to be fast."""


class MachinePace(Frozen):
    """One machine's cost in one check."""

    cost: float
    repeats: int | None
    """None: the check does not report it."""
    usual: float | None


Group = tuple[str, str, str]
"""Check, kind of hardware, unit: only these are compared."""


def slow(findings: Iterable[Finding], factor: float, limits: PaceLimits) -> tuple[set[str], list[str]]:
    """Return slow machines and sentences about them; more than ``factor`` times the median in some check is slow."""
    groups, lines = _paces(findings, limits)
    named: set[str] = set()
    for (check, kind, _), paces in sorted(groups.items()):
        what = f"{check} ({kind})" if kind else check
        usual = median(pace.cost for pace in paces.values())
        over = _over(paces, usual, factor, limits)
        earlier = {name: pace.usual for name, pace in paces.items() if pace.usual}
        slower = {
            name for name, before in earlier.items() if paces[name].cost > limits.than_before * before
        } & {name for name, pace in paces.items() if _measured(pace, limits)}
        if over:
            ratios = join_names([f"{name} {paces[name].cost / usual:.1f}x" for name in sorted(over)])
            lines.append(f"{what}: slower than the median of {len(paces)} machines: {ratios}")
        if slower:
            ratios = join_names(
                [f"{name} {paces[name].cost / earlier[name]:.1f}x" for name in sorted(slower)]
            )
            lines.append(f"{what}: slower than before: {ratios}")
        if len(paces) < limits.machines and not earlier:
            lines.append(f"{what}: pace not known, {len(paces)} machines and no earlier values to compare")
        named |= _few(over, len(paces))
        # All of them slower than they were: the fabric, the room, the check itself.
        named |= _few(slower, len(earlier)) if len(earlier) > 1 else set()
    return named, lines


def slow_links(findings: Iterable[Finding], factor: float, limits: PaceLimits) -> set[str]:
    """Return all machines whose best transfer with another one is slow, however many they are.

    They are compared with the better quarter: half of them may stand behind one switch. One that is far nearer to the
    others than to the slowest is not among them: a transfer of a good link takes twice as long now and then.
    """
    groups, _ = _paces((finding for finding in findings if finding.peer is not None), limits)
    found: set[str] = set()
    for paces in groups.values():
        costs = sorted(pace.cost for pace in paces.values())
        usual = costs[(len(costs) - 1) // 4]
        between = math.sqrt(usual * costs[-1])
        found |= {name for name in _over(paces, usual, factor, limits) if paces[name].cost >= between}
    return found


def _few(over: set[str], of: int) -> set[str]:
    return over if len(over) <= max(MOST_SHARE * of, 1 if of == 2 else 0) else set()


def _over(paces: Mapping[str, MachinePace], usual: float, factor: float, limits: PaceLimits) -> set[str]:
    if len(paces) < limits.machines:
        return set()
    spread = median(abs(pace.cost - usual) for pace in paces.values())
    fine = max(
        limits.slightly * usual, usual + limits.deviations * max(spread, limits.least_deviation * usual)
    )
    if len(paces) < limits.machines_slightly:
        fine = factor * usual
    found = set()
    for name, pace in paces.items():
        if pace.repeats is None:
            limit = factor * usual
        else:
            limit = min(fine, factor * usual) if _measured(pace, limits) else limits.grossly * usual
        if pace.cost > limit:
            found.add(name)
    return found


def _measured(pace: MachinePace, limits: PaceLimits) -> bool:
    return pace.repeats is not None and pace.repeats >= limits.repeats


def _paces(
    findings: Iterable[Finding], limits: PaceLimits
) -> tuple[dict[Group, dict[str, MachinePace]], list[str]]:
    """Return paces by group and machine: the worst of its processes, the best of its pairs."""
    groups: dict[Group, dict[str, MachinePace]] = defaultdict(dict)
    busy: set[str] = set()
    for finding in findings:
        if not finding.ok or not finding.value or finding.value <= 0:
            continue
        if finding.busy > limits.busy:
            busy.add(finding.machine)
            continue
        known = groups[finding.check, finding.kind, finding.unit]
        pace = MachinePace(
            cost=cost_of(finding.value, finding.unit),
            repeats=finding.repeats or None,
            usual=cost_of(finding.usual, finding.unit)
            if finding.usual and finding.usual_of >= limits.earlier
            else None,
        )
        before = known.get(finding.machine)
        worse = before is None or (pace.cost < before.cost if finding.peer else pace.cost > before.cost)
        if worse:
            known[finding.machine] = pace
    lines = [f"pace not known on {join_names(sorted(busy))}: they are busy with other work"] if busy else []
    return groups, lines


def cost_of(value: float, unit: str) -> float:
    """Invert a rate into a cost: more of a cost is worse."""
    return 1.0 / value if unit.endswith("/s") else value
