"""A kernel log as a file, and the watcher of it."""

from __future__ import annotations

from pathlib import Path


def write(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
