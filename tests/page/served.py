"""The kit's gateway on a real port of loopback, in this event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from holdfast.listen import listen
from holdfast.testing.gateway_kit import SECRET, Kit
from tests.page.tab import Tab


@asynccontextmanager
async def served(kit: Kit) -> AsyncIterator[str]:
    """Its address. Its loops do not run: nothing happens by itself."""
    socket = listen("127.0.0.1", 0, backlog=64)
    server = uvicorn.Server(uvicorn.Config(kit.app, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def log_in(tab: Tab, address: str, by: str = "ada") -> None:
    """Through the dialog, as a person does."""
    await tab.open(f"{address}/ui/")
    await tab.fill("by", by)
    await tab.fill("secret", SECRET)
    await tab.click("dialog button[type=submit]")
    await tab.until("!document.querySelector('dialog').open")
