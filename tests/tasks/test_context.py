"""Objects that the steps of a process share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from holdfast.operations.context import Context
from holdfast.settings import Settings


def test_the_client_of_a_loop_is_closed_with_it(tmp_path: Path) -> None:
    """Also where its user was cancelled; a later loop, which may have the same address, gets its own."""
    ctx = Context(Settings(home=tmp_path))
    seen: list[httpx.AsyncClient] = []

    async def use() -> None:
        assert ctx.http is ctx.http
        seen.append(ctx.http)

    for _ in range(3):
        asyncio.run(use())
    assert len(set(map(id, seen))) == 3
    assert all(client.is_closed for client in seen)
