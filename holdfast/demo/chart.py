"""The report's two charts as inline SVG: steps over time, and each incident's time by phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from holdfast.demo.report import DemoReport, IncidentLine
from holdfast.policies.accounting.lost_time import LostPhase

WIDTH, HEIGHT = 1040, 340
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 96, 28
_ORDER = tuple(phase.value for phase in LostPhase)
_COLOURS = (
    "#e07a3f",
    "#3f8fe0",
    "#9b59b6",
    "#2a9d8f",
    "#d64550",
    "#b8860b",
    "#5c6bc0",
    "#7cb342",
    "#8d6e63",
    "#26a69a",
    "#9e9e9e",
    "#c2185b",
)


def timeline(report: DemoReport) -> str:
    """Draw steps over time, with a band for each incident."""
    if len(report.timeline) < 2:
        return '<p class="soft">Too short to draw.</p>'
    until = max(at for at, _ in report.timeline)
    top = max(1, report.steps_total, *(step for _, step in report.timeline))
    x_scale = (WIDTH - LEFT - RIGHT) / max(until, 1e-9)
    y_scale = (HEIGHT - TOP - BOTTOM) / top

    def x(at: float) -> float:
        return LEFT + min(max(at, 0.0), until) * x_scale

    def y(step: float) -> float:
        return HEIGHT - BOTTOM - step * y_scale

    parts = [_grid(until, top, x, y)]
    for index, line in enumerate(report.incidents):
        start = (line.injected_at or line.detected_at) - report.started_at
        left, right = x(start), x(start + (line.recovered_s or 0.0))
        parts.append(_band(left, max(right - left, 2.0), line, index))
    points = " ".join(f"{x(at):.1f},{y(step):.1f}" for at, step in report.timeline)
    parts.append(f'<polyline points="{points}" fill="none" stroke="var(--step)" stroke-width="2"/>')
    return _svg(HEIGHT, "".join(parts), "Steps over time with incidents")


def bars(lines: Sequence[IncidentLine]) -> str:
    """Draw one bar per incident, with a piece per phase."""
    drawn = [line for line in lines if line.phases]
    if not drawn:
        return ""
    names = phase_names(lines)
    left, row = 190, 26
    longest = max(sum(line.phases.values()) for line in drawn)
    scale = (WIDTH - left - 70) / max(longest, 1e-9)
    parts = []
    for index, line in enumerate(drawn):
        top, at = 30 + index * row, float(left)
        parts.append(f'<text x="0" y="{top + 14}">{escape(line.fault or line.incident_class)}</text>')
        for name, length in line.phases.items():
            tip = escape(f"{name}: {length:.2f} s")
            parts.append(
                f'<rect x="{at:.1f}" y="{top}" width="{max(length * scale, 0.5):.1f}" height="18" '
                f'fill="{_colour(names.index(name))}"><title>{tip}</title></rect>'
            )
            at += length * scale
        parts.append(f'<text x="{at + 6:.1f}" y="{top + 14}">{sum(line.phases.values()):.1f} s</text>')
    return _svg(40 + len(drawn) * row, _legend(names) + "".join(parts), "Time per phase per incident")


def phase_names(lines: Sequence[IncidentLine]) -> list[str]:
    """Return the phases that occur, in the order in which an incident goes through them."""
    names = {name for line in lines for name in line.phases}
    return [name for name in _ORDER if name in names]


def ticks(until: float, most: int = 8) -> list[float]:
    """Return round values from 0 to ``until``, at most ``most`` + 1 of them."""
    rough = max(until, 1e-9) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    size = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [index * size for index in range(math.floor(until / size) + 1)]


def _grid(until: float, top: int, x: object, y: object) -> str:
    assert callable(x)
    assert callable(y)
    parts = []
    for step in ticks(top, 5):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(step):.1f}" y2="{y(step):.1f}" stroke="var(--line)"/>'
            f'<text x="{LEFT - 6}" y="{y(step) + 4:.1f}" text-anchor="end">{step:.0f}</text>'
        )
    for at in ticks(until):
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{at:.0f} s</text>')
    return "".join(parts)


def _band(left: float, width: float, line: IncidentLine, index: int) -> str:
    name = line.fault or line.incident_class
    tip = f"{name} on {line.machine}: {line.incident_class}, {line.state}"
    label = 14 + (index % 5) * 16
    anchor, at = ("end", left + width) if left > WIDTH * 0.8 else ("start", left)
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<rect x="{left:.1f}" y="{label + 4}" width="{width:.1f}" height="{HEIGHT - BOTTOM - label - 4}" '
        f'fill="{_colour(index)}" fill-opacity="0.22"/>'
        f'<text x="{at:.1f}" y="{label}" text-anchor="{anchor}">{escape(name)}</text></g>'
    )


def _legend(names: Sequence[str]) -> str:
    parts, at = [], 0.0
    for index, name in enumerate(names):
        parts.append(f'<rect x="{at:.0f}" y="4" width="11" height="11" fill="{_colour(index)}"/>')
        parts.append(f'<text x="{at + 15:.0f}" y="14">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    return "".join(parts)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _svg(height: int, inside: str, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{inside}</svg>'
