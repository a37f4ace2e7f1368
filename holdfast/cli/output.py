"""How commands print: tables for people, JSON for programs, and times in words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.shown import plain

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

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
    """Print a table, or ``empty`` when there are no rows."""
    table = Table(title=plain(title), title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row))
    out.print(table if table.row_count else f"{title}: {escape(plain(empty))}")


def say(text: str) -> None:
    """Print one line, as it is."""
    out.print(plain(text), markup=False, soft_wrap=True)


def tell(as_json: bool, line: str, **facts: object) -> None:
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
    err.print(plain(text), markup=False, soft_wrap=True)


def state(value: object) -> Text:
    """Return a state's name in its colour."""
    return Text(plain(value), style=_COLOURS.get(str(value), ""))


def ago(at: float | None, now: float | None = None) -> str:
    """Return ``12 s ago`` for a Unix time; empty for none."""
    return f"{seconds((now or time.time()) - at)} ago" if at else ""


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


def _cell(value: object) -> str:
    return "" if value is None else plain(value)


def _plain(value: object) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
