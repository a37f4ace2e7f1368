"""Plots of a comparison, as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.policies.accounting.lost_time import LostPhase
from holdfast.simulate.summary import SimulatedOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Twelve distinguishable colours: the phases are ten, the incident classes eleven.
COLOURS = (
    "#d1495b",
    "#8e6bbf",
    "#17a398",
    "#2b59c3",
    "#f2a541",
    "#6a994e",
    "#8fd3f4",
    "#9e9e9e",
    "#b8860b",
    "#e76f51",
    "#4a3f35",
    "#e6a6c7",
)


def write(outcomes: Sequence[SimulatedOutcome], folder: Path) -> list[Path]:
    """Write ``ettr.svg``, ``lost-time.svg``, ``lost-by-class.svg`` and ``mechanisms.svg``; returns their paths.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"ettr": _ettr, "lost-time": _lost, "lost-by-class": _classes, "mechanisms": _mechanisms}
    return [_save(draw, outcomes, folder / f"{name}.svg") for name, draw in drawn.items()]


def _save(draw: Any, outcomes: Sequence[SimulatedOutcome], path: Path) -> Path:
    # It takes half a second to import: only plots pay for it.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, 1.6 + 0.45 * len(outcomes)), layout="constrained")
    axes = figure.subplots()
    draw(axes, outcomes)
    axes.set_yticks(range(len(outcomes)), [outcome.title for outcome in outcomes])
    axes.invert_yaxis()
    # Without a date and with its own salt, the same outcome gives the same bytes. Text stays text.
    with mpl.rc_context({"svg.hashsalt": "holdfast", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _ettr(axes: Axes, outcomes: Sequence[SimulatedOutcome]) -> None:
    for row, outcome in enumerate(outcomes):
        mean = outcome.ettr
        spans = [[100 * (mean.mean - mean.low)], [100 * (mean.high - mean.mean)]]
        axes.errorbar(100 * mean.mean, row, xerr=spans, fmt="o", color="#2b59c3", capsize=4)
        label = f"{100 * mean.mean:.2f} %"
        axes.annotate(label, (100 * mean.mean, row), (0, 7), textcoords="offset points", ha="center")
    axes.grid(axis="x", alpha=0.3)
    axes.margins(x=0.08, y=0.1)
    axes.set(xlabel="ETTR, %", title="Effective training time ratio, with 95 % confidence intervals")


def _lost(axes: Axes, outcomes: Sequence[SimulatedOutcome]) -> None:
    rows = [{name: mean.mean for name, mean in outcome.lost_h.items()} for outcome in outcomes]
    _stacked(axes, rows, [phase.value for phase in LostPhase])
    axes.set(xlabel=f"hours lost in {outcomes[0].days:g} days", title="Lost time by phase")


def _classes(axes: Axes, outcomes: Sequence[SimulatedOutcome]) -> None:
    rows = [
        {name or "no incident": mean.mean for name, mean in outcome.lost_by_class_h.items()}
        for outcome in outcomes
    ]
    _stacked(axes, rows, sorted({name for row in rows for name in row}))
    axes.set(xlabel=f"hours lost in {outcomes[0].days:g} days", title="Lost time by incident class")


def _mechanisms(axes: Axes, outcomes: Sequence[SimulatedOutcome]) -> None:
    rows = [{name: 100 * share for name, share in outcome.mechanisms.items()} for outcome in outcomes]
    _stacked(axes, rows, sorted({name for row in rows for name in row}))
    axes.set(xlabel="% of incidents", title="What ended incidents")


def _stacked(axes: Axes, rows: Sequence[dict[str, float]], names: Sequence[str]) -> None:
    left = [0.0] * len(rows)
    for index, name in enumerate(name for name in names if any(name in row for row in rows)):
        widths = [row.get(name, 0.0) for row in rows]
        label = name.replace("_", " ")
        axes.barh(range(len(rows)), widths, left=left, label=label, color=COLOURS[index % len(COLOURS)])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    if any(rows):
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
