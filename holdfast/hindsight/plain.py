"""Playbooks without Prefect: their steps are called as plain functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from prefect.logging import disable_run_logger
from prefect.tasks import Task


@contextlib.contextmanager
def without_prefect() -> Iterator[None]:
    """Replace tasks by their functions while the context is open; nothing is published."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    with (
        disable_run_logger(),
        patch.object(Task, "__call__", lambda self, *a, **k: self.fn(*a, **k)),
        patch("holdfast.tasks.report._publish", nothing),
    ):
        yield
