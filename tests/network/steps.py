"""Notes of ranks on their steps, and the overlaps that these must never show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Generation:
    """The ranks of one epoch. Times are of this host's monotonic clock, in seconds."""

    epoch: int
    first: float
    """When one of them began its first step."""
    last: float
    """The last word of any."""
    step: int
    """The newest that was begun."""


def generations(notes: Path, job: str) -> list[Generation]:
    """Those of a job that made steps, oldest first."""
    by_epoch: dict[int, list[tuple[int, float]]] = {}
    for path in notes.glob(f"{job}-e*-r*"):
        found = re.fullmatch(rf"{re.escape(job)}-e(\d+)-r\d+", path.name)
        lines = path.read_text().split("\n")[:-1]  # the last one may be half written
        if found and lines:
            marks = [(int(step), float(at)) for step, at in map(str.split, lines)]
            by_epoch.setdefault(int(found[1]), []).extend(marks)
    return [
        Generation(
            epoch=epoch,
            first=min(at for _, at in marks),
            last=max(at for _, at in marks),
            step=max(step for step, _ in marks),
        )
        for epoch, marks in sorted(by_epoch.items())
    ]


def overlaps(found: list[Generation]) -> list[tuple[Generation, Generation]]:
    """Pairs of an older and a newer generation of which the older did something after the newer began."""
    return [(old, new) for at, old in enumerate(found) for new in found[at + 1 :] if old.last > new.first]
