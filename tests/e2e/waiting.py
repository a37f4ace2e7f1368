"""Waiting for conditions and for the ends of processes, and ports that are free."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TypeVar

Value = TypeVar("Value")

DEADLINE_S = 180.0
"""Generous: other work may share the cores. No test asserts how fast something was."""


def wait_for(
    what: str | Callable[[], str],
    look: Callable[[], Value | None],
    timeout_s: float = DEADLINE_S,
    every_s: float = 0.05,
) -> Value:
    """Look until there is something true to see, and return it; fail with ``what`` (of then) when time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        if seen := look():
            return seen
        if time.monotonic() > deadline:
            expected = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout_s:.0f} s: {expected}")
        time.sleep(every_s)


def end(process: subprocess.Popen[bytes], patience_s: float = 30.0) -> None:
    """Ask a process to end, and kill it when it does not."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(count: int = 3, low: int = 21_000, spread: int = 8_000, high: int = 32_000) -> int:
    """The first of ``count`` free ports in a row, outside the range that the kernel hands out.

    The search begins up to ``spread`` above ``low``, so that two that look at once begin apart: two of pytest's
    processes in different quarters of it.
    """
    worker = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0)
    quarter = spread // 4
    for base in range(low + worker % 4 * quarter + time.monotonic_ns() % quarter, high, count):
        try:
            with ExitStack() as held:
                for port in range(base, base + count):
                    held.enter_context(closing(socket.socket())).bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")
