"""Flows for the tests of the worker: they report their acts in a file."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from prefect import flow, get_run_logger, task


def _append(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{time.time()} {os.getpid()} {text}\n")


@task
async def write_line(path: str, text: str) -> None:
    """Append a line with the time, this process and ``text``."""
    _append(path, text)


@flow(name="sample-quick", flow_run_name="quick {text}")
async def quick(path: str, text: str = "done") -> None:
    """Write one line."""
    await write_line(path, text)


@flow(name="sample-sync")
def plain(path: str) -> None:
    """Write one line, as a flow without async."""
    _append(path, "plain")


@flow(name="sample-slow")
async def slow(path: str, seconds: float = 600.0) -> None:
    """Write ``began``, wait, write ``ended``."""
    await write_line(path, "began")
    await asyncio.sleep(seconds)
    await write_line(path, "ended")


@flow(name="sample-talkative")
async def talkative(lines: int) -> None:
    """Log ``lines`` lines."""
    log = get_run_logger()
    for number in range(lines):
        log.info("line %d", number)


@flow(name="sample-failing")
async def failing() -> None:
    """Raise."""
    raise RuntimeError("on purpose")
