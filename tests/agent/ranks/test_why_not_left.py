"""The reason in the incident's report why a process did not leave its training function in time."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.ranks import survivors


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [
        (-signal.SIGKILL, "it was killed by SIGKILL instead of leaving its training function"),
        (1, "it ended with status 1 instead of leaving its training function"),
    ],
)
async def test_one_that_died_at_the_order_is_reported_with_its_signal(exit_code: int, reason: str) -> None:
    """Of two ranks that are killed at once the second one's death may be known from this alone."""
    gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    gone.set_result(exit_code)
    process: Any = SimpleNamespace(rank=1, pid=1, gone=gone, exit_code=exit_code)
    assert await survivors.why_not_left({1: process}) == {1: reason}
