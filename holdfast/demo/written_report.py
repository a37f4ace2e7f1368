"""The report on disk, and its summary on the terminal."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.demo import page
from holdfast.demo.report import DemoReport


def write(report: DemoReport, folder: Path) -> Path:
    """Write ``report.json`` and ``report.html`` into ``folder``, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = report.model_dump(mode="json", by_alias=True)
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "report.html").write_text(page.render(report))
    return folder


def summarise(report: DemoReport, console: Console) -> None:
    """Print the table that the demo ends with."""
    table = Table(title="Incidents", title_justify="left")
    for name in ("FAULT", "INCIDENT", "MACHINE", "DETECTED", "FIRST TASK", "RECOVERED"):
        table.add_column(name, overflow="fold")
    for line in report.incidents:
        table.add_row(
            line.fault or "(planned)",
            line.incident_class,
            line.machine or "",
            page.seconds(line.detected_s),
            page.seconds(line.first_task_s),
            page.seconds(line.recovered_s),
        )
    console.print(table)
    equal = "identical, bit by bit" if report.bitwise_equal else "NOT shown to be equal"
    console.print(f"weights     {equal}, against a run without faults")
    console.print(f"ETTR        {100 * report.ettr:.1f} %")
    console.print(f"steps       {report.steps_total}, of which {report.steps_recomputed} were done again")
    for problem in report.problems:
        console.print(Text(f"problem     {problem}", style="red"), soft_wrap=True)
