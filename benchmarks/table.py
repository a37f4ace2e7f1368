"""Rows of the table: what was promised, what was measured, and beside whom."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measurement. Samples are in ``unit``."""

    what: str
    unit: str
    samples: Sequence[float]
    target: float | None = None
    """The median may be at most this."""
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ratio_target: float | None = None
    """The median may be at most this part of the best peer's."""
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    """For the results file only."""

    @property
    def median(self) -> float | None:
        """Median of the samples; None without any."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """Name and median of the fastest peer that ran."""
        medians = {name: statistics.median(found) for name, found in self.peers.items() if found}
        return min(medians.items(), key=lambda item: item[1]) if medians else None

    @property
    def ratio(self) -> float | None:
        """Our median as a part of the best peer's."""
        best, median = self.best_peer, self.median
        return median / best[1] if best and median is not None else None

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL``, or what is missing for a verdict."""
        if self.median is None:
            return "FAIL (not measured)"
        if self.target is not None and self.median > self.target:
            return "FAIL"
        if self.ratio_target is not None:
            if self.ratio is None:
                return "no peer ran"
            if self.ratio > self.ratio_target:
                return "FAIL"
        return "pass"

    def to_json(self) -> dict[str, Any]:
        """Everything, for the results file."""
        return asdict(self) | {"median": self.median, "ratio": self.ratio, "verdict": self.verdict}


HEADER = ("what", "target", "median", "min to max", "n", "peers (median)", "ratio", "")


def cells(row: Row) -> tuple[str, ...]:
    """The row as text, in the order of :data:`HEADER`."""
    low_high = f"{_number(min(row.samples))} to {_number(max(row.samples))}" if row.samples else ""
    targets = []
    if row.target is not None:
        targets.append(f"<= {_number(row.target)} {row.unit}".rstrip())
    if row.ratio_target is not None:
        targets.append(f"<= {row.ratio_target:g} of best peer")
    peers = [
        f"{name} {_number(statistics.median(found)) if found else 'missing'}"
        for name, found in row.peers.items()
    ]
    return (
        row.what,
        ", ".join(targets) or "for comparison",
        "" if row.median is None else f"{_number(row.median)} {row.unit}".rstrip(),
        low_high,
        str(len(row.samples)),
        ", ".join(peers),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.verdict,
    )


def plain(rows: Sequence[Row]) -> str:
    """The table for a terminal, with the notes under it."""
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    lines.insert(1, tuple("-" * width for width in widths))
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*(line.rstrip() for line in text), "", *(f"* {note}" for note in notes(rows))])


def markdown(rows: Sequence[Row]) -> str:
    """The table and the notes for the docs."""
    lines = [HEADER, tuple("---" for _ in HEADER), *(cells(row) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([table, "", *(f"- {note}" for note in notes(rows))])


def notes(rows: Sequence[Row]) -> list[str]:
    """All notes, each once."""
    return list(dict.fromkeys(note for row in rows for note in row.notes))


def _number(value: float) -> str:
    """Three significant digits, no exponent."""
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"
