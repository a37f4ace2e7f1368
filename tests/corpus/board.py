"""The scoreboard of the corpus: accuracy by kind, wrong accusations, and the half that no pattern was written from."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.corpus.items import Kind, load
from tests.corpus.judge import Score, score


def scores() -> list[Score]:
    """All items, judged."""
    found = []
    for item in load():
        with tempfile.TemporaryDirectory() as folder:
            found.append(score(item, Path(folder)))
    return found


def show(console: Console, found: Sequence[Score]) -> int:
    """Print the board; returns how many items are wrong."""
    wrong = sum(each.accuses_wrongly for each in found)
    table = Table(title=f"{len(found)} items of real material, {wrong} wrong accusations", box=None)
    for column in ("kind", "right", "held out, right"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for kind in Kind:
        table.add_row(kind.value, *_shares([each for each in found if each.item.kind is kind]))
    table.add_row("all", *_shares(found))
    console.print(table)
    amiss = [each for each in found if not each.right or each.accuses_wrongly]
    for each in amiss:
        label = f"{each.item.expect} {each.item.beside}".strip()
        got = f"{each.answer.found_class} {each.answer.beside}".strip()
        console.print(f"[red]{each.item.id}[/red]: expected {label}, got {got}", highlight=False)
    return len(amiss)


def _shares(found: Sequence[Score]) -> tuple[str, str]:
    return _share(found), _share([each for each in found if each.item.held_out])


def _share(found: Sequence[Score]) -> str:
    return f"{sum(each.right for each in found)} of {len(found)}"
