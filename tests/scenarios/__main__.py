"""``python -m tests.scenarios``: play all scenarios, judge the corpus, print the scoreboards; status 1 if amiss."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from holdfast.testing.differences import misses, wrong_actions
from holdfast.testing.play import play
from holdfast.testing.scenario import load
from tests.corpus.board import scores, show


def main() -> int:
    """Play, print, judge."""
    logging.disable(logging.CRITICAL)
    scenarios, console = load(Path(__file__).parent), Console()
    rows, right, wrong, evictions, good_evictions, opened, took = [], 0, 0, 0, 0, [], []
    faults = [one for one in scenarios if not one.quiet]
    found = 0
    for scenario in scenarios:
        with tempfile.TemporaryDirectory() as folder:
            played = asyncio.run(play(scenario, Path(folder)))
        amiss, done = misses(scenario, played), wrong_actions(scenario, played)
        right += not amiss and not done
        wrong += len(done)
        evictions += len(played.evicted)
        good_evictions += len(set(played.evicted) & set(scenario.expect.culprits))
        if not scenario.quiet:
            found += not amiss
            opened.append(played.opened_after_s)
            took.append(played.took_s)
        if amiss or done:
            rows.append((scenario.name, "; ".join([*done, *amiss])))
    quiet = len(scenarios) - len(faults)
    table = Table(
        title=f"{len(scenarios)} scenarios: {len(faults)} faults, {quiet} that must not act", box=None
    )
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("as expected in everything", f"{right} of {len(scenarios)}")
    table.add_row("recall (faults: class, culprit and actions as expected)", f"{found / len(faults):.1%}")
    table.add_row(
        "precision (evicted machines that were the culprits)", f"{good_evictions / max(1, evictions):.1%}"
    )
    table.add_row("wrong actions", str(wrong))
    table.add_row(
        "signal to incident, on the scenarios' clock", f"{median(opened):.2f} s, at most {max(opened):.1f} s"
    )
    table.add_row(
        "signal to the end of the playbook, scripted",
        f"{median(took) * 1e3:.0f} ms, at most {max(took) * 1e3:.0f} ms",
    )
    console.print(table)
    for name, why in rows:
        console.print(f"[red]{name}[/red]: {why}", highlight=False)
    console.print()
    amiss = show(console, scores())
    return int(bool(rows) or bool(wrong) or bool(amiss))


if __name__ == "__main__":
    sys.exit(main())
