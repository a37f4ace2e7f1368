"""How commands print: tables for people, JSON for programs, and times in words."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast import redact
from holdfast.shown import plain

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

_READABLE = 20
"""Characters that a column of a table needs at least, unless all of its cells are shorter."""
_GAP = 2
_UNLIMITED = 10_000

_COLOURS = {
    "running": "green",
    "done": "green",
    "recovered": "green",
    "active": "green",
    "standby": "cyan",
    "open": "yellow",
    "recovering": "yellow",
    "paused": "yellow",
    "scaled_to_zero": "yellow",
    "provisioning": "yellow",
    "draining": "yellow",
    "needs_human": "red",
    "failed": "red",
    "cordoned": "red",
    "gone": "red",
}


def print_json(value: object) -> None:
    """Print ``value`` (models, lists and dicts of plain values) as one JSON document: ASCII, so without escapes."""
    # The one sign that terminals act on and that JSON leaves as it is.
    typer.echo(json.dumps(value, indent=2, default=_plain).replace("\x7f", "\\u007f"))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print a table, or ``empty`` when there are no rows.

    Where its columns would become too narrow to be read, each row is printed as its first cell and, below it, the
    others with the names of their columns. What is not printed to a terminal is as wide as its cells.
    """
    cells = [[cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row] for row in rows]
    if not cells:
        out.print(f"{title}: {escape(plain(empty))}")
        return
    limited = out.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    console = Console(highlight=False, width=None if limited else _UNLIMITED)
    if _needed(columns, cells) > console.width:
        _print_records(console, title, columns, cells)
        return
    table = Table(title=plain(title), title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _needed(columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> int:
    """Return the width from which on a table can be read."""
    longest = (max(row[at].cell_len for row in rows) for at in range(len(columns)))
    least = (max(len(name), min(cell, _READABLE)) for name, cell in zip(columns, longest, strict=True))
    return sum(least) + _GAP * (len(columns) - 1)


def _print_records(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]]
) -> None:
    if title:
        console.print(Text(plain(title), style="italic"))
    for first, *others in rows:
        console.print(first, style="bold")
        line = Text()
        for name, cell in zip(columns[1:], others, strict=True):
            if not cell.plain:
                continue
            item = Text.assemble((f"{name} " if name else "", "bold"), cell)
            if line and line.cell_len + _GAP + item.cell_len > console.width - _GAP:
                console.print(Padding(line, (0, 0, 0, _GAP), expand=False))
                line = Text()
            line = Text.assemble(line, " " * _GAP, item) if line else item
        if line:
            console.print(Padding(line, (0, 0, 0, _GAP), expand=False))


def say(text: str) -> None:
    """Print one line, as it is but for passwords of URLs."""
    out.print(plain(redact.passwords(text)), markup=False, soft_wrap=True)


def report(as_json: bool, line: str, **facts: object) -> None:
    """Report what was done: one line for people, or the ``facts`` and the line as JSON."""
    if as_json:
        print_json({**facts, "message": line})
    else:
        say(line)


def progress(as_json: bool) -> Callable[[str], None]:
    """Return the printer for lines that come before the outcome: they must not mix with the JSON."""
    return say_aside if as_json else say


def say_aside(text: str) -> None:
    """Print one line on standard error."""
    err.print(plain(redact.passwords(text)), markup=False, soft_wrap=True)


def state(value: object) -> Text:
    """Return a state's name in its colour."""
    return Text(plain(value), style=_COLOURS.get(str(value), ""))


def serves(job: str | None, role: str | None) -> str:
    """Return the job of a machine, with the role that has it for itself: ``rl (rollout)``."""
    return f"{job} ({role})" if job and role else job or ""


def ago(at: float | None, now: float | None = None) -> str:
    """Return ``12 s ago`` for a Unix time; empty for none.

    One that is to come was noted by another clock.
    """
    if not at:
        return ""
    gone = (now or time.time()) - at
    return f"{seconds(gone)} ago" if gone >= 0 else f"{seconds(-gone)} ahead of this clock"


def at(moment: float) -> str:
    """Return a Unix time on the local clock, with its date."""
    return f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d %H:%M:%S}"


def seconds(value: float | None) -> str:
    """Return a duration in words: ``0.42 s``, ``12 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172_800 else f"{value / 86_400:.0f} d"


def percent(value: float | None) -> str:
    """Return ``97.2 %``; empty for none."""
    return "" if value is None else f"{100 * value:.1f} %"


def _cell(value: object) -> str:
    return "" if value is None else plain(value)


def _plain(value: object) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
