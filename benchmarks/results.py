"""Where results go: a JSON file per run, and the table in the docs."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks import table
from benchmarks.table import Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs" / "benchmarks.md"


def host() -> dict[str, Any]:
    """The host of the run."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "prefect": version("prefect"),
        "holdfast": version("holdfast"),
    }


def write(rows: Sequence[Row], n: int, where: dict[str, Any], errors: Sequence[str]) -> Path:
    """Write the results file; returns it."""
    now = datetime.datetime.now().astimezone()
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%dT%H%M%S}.json"
    content = {
        "at": now.isoformat(timespec="seconds"),
        "runs": n,
        "host": where,
        "errors": list(errors),
        "rows": [row.to_json() for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def write_docs(name: str, rows: Sequence[Row], n: int, where: dict[str, Any]) -> None:
    """Replace one benchmark's table in ``docs/benchmarks.md``; the others stay as they were measured."""
    text = DOCS.read_text()
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{DOCS} has no {begin} ... {end} to write the table between")
    day = datetime.date.today().isoformat()
    measured = (
        f"Measured {day}, {n} runs: {where['cores']} cores of {where['cpu']}, {where['memory_gib']} GiB; "
        f"Python {where['python']}, torch {where['torch']}, Prefect {where['prefect']}; load average before: "
        f"{where['load_before']:.1f}."
    )
    DOCS.write_text(f"{before}{begin}\n{measured}\n\n{table.markdown(rows)}\n{end}{after}")
