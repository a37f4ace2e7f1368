"""Forks for tests of what the fork server's processes do."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from typing import Any

from holdfast.agent.diagnostics.machine_checks import ForkFn


@contextmanager
def forking(*preload: str) -> Iterator[ForkFn]:
    """A fork server with ``preload`` loaded; what it forked is gone afterwards."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    forked: list[ForkServerProcess] = []

    def start(target: Callable[..., None], args: tuple[Any, ...]) -> ForkServerProcess:
        process = context.Process(target=target, args=args)
        process.start()
        forked.append(process)
        return process

    try:
        yield start
    finally:
        for process in forked:
            process.kill()
            process.join()
