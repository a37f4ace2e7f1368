"""Measurements of this machine in earlier checks: kept in its folder, reported with the current ones.

A value that is much worse than usual is not recorded, so that a machine that became slow does not get used to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from holdfast import durable
from holdfast.models.alert import Finding
from holdfast.policies.diagnose.pace import PaceLimits, cost_of

KEPT = 32
"""Newest values of each check."""
WORSE = 1.15
"""More than this times the usual cost is not recorded."""


def compared(findings: Iterable[Finding], path: Path) -> list[Finding]:
    """Return the findings, each with what is usual here; ``path`` then has their values too."""
    known = _read(path)
    found = list(findings)
    results = [_with_usual(finding, known) for finding in found]
    limits = PaceLimits()
    changed = False
    for finding in results:
        if not finding.ok or not finding.value or finding.repeats < limits.repeats:
            continue
        if finding.busy > limits.busy or _much_worse(finding, limits):
            continue
        values = known.setdefault(_key(finding), [])
        values.append(finding.value)
        del values[:-KEPT]
        changed = True
    if changed:
        _write(path, known)
    return results


def _with_usual(finding: Finding, known: dict[str, list[float]]) -> Finding:
    values = known.get(_key(finding))
    if not values or finding.value is None:
        return finding
    return finding.model_copy(update={"usual": median(values), "usual_of": len(values)})


def _much_worse(finding: Finding, limits: PaceLimits) -> bool:
    if not finding.usual or not finding.value or finding.usual_of < limits.earlier:
        return False
    return cost_of(finding.value, finding.unit) > WORSE * cost_of(finding.usual, finding.unit)


def _key(finding: Finding) -> str:
    rank = "" if finding.rank is None else str(finding.rank)
    return "|".join((finding.check, finding.kind, finding.unit, rank))


def _read(path: Path) -> dict[str, list[float]]:
    """Return what is kept; nothing when it cannot be read: then nothing is usual yet."""
    try:
        kept = json.loads(path.read_text())
        return {str(key): [float(value) for value in values] for key, values in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(path: Path, known: dict[str, list[float]]) -> None:
    try:
        durable.write(path, json.dumps(known), "baseline")
    except OSError:
        return  # a full disk is reported by inspection
