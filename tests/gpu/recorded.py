"""Records of tests on a GPU: lines of measurements, and raw outputs of tools in ``HOLDFAST_GPU_OUT``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 256 << 10
"""Of one file: they may become items of the corpus."""
TOOL_S = 20.0


def measured(what: str) -> None:
    """Print a line, and add it to ``measured.txt``."""
    sys.stdout.write(f"measured: {what}\n")
    if folder := _folder():
        with (folder / "measured.txt").open("a") as lines:
            lines.write(f"{what}\n")


def record(name: str, text: str) -> None:
    """Keep a text under a name; its end, where it is long."""
    if folder := _folder():
        (folder / name).write_text(text[-MOST_BYTES:])


def output(*command: str) -> str:
    """Output of a tool, also on its error stream; empty where it is not installed or does not end in time."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def _folder() -> Path | None:
    if not (path := os.environ.get("HOLDFAST_GPU_OUT")):
        return None
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
