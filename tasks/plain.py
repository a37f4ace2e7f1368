"""Playbooks without Prefect: their steps are called as plain functions."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from unittest.mock import patch

from prefect.logging import disable_run_logger, get_run_logger
from prefect.tasks import Task

from holdfast.tasks.at_once import run_at_once


@contextlib.contextmanager
def without_prefect(log: logging.Logger | None = None) -> Iterator[None]:
    """Replace tasks by their functions while the context is open; nothing is published.

    Lines that runs log go to ``log`` from all modules that are imported by now; without one they are dropped.
    """

    async def nothing(*_: object, **__: object) -> None:
        return None

    with contextlib.ExitStack() as stack:
        stack.enter_context(disable_run_logger())
        stack.enter_context(patch.object(Task, "__call__", lambda self, *a, **k: self.fn(*a, **k)))
        stack.enter_context(run_at_once())
        stack.enter_context(patch("holdfast.tasks.report._publish", nothing))
        for module in list(sys.modules.values()) if log else ():
            if vars(module).get("get_run_logger") is get_run_logger:
                stack.enter_context(patch.object(module, "get_run_logger", lambda: log))
        yield
