"""Turns: one process of the site at a time does something that several may want to do at once, held in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator

from holdfast.errors import UnavailableError
from holdfast.models.lease import Leader
from holdfast.storage.ledger import Ledger

TTL_S = 15.0
"""One that gave no sign of life for so long is passed over: its process is dead, or asleep."""
RENEW_S = 5.0
PATIENCE_S = 60.0
_AGAIN_S = 0.1


@contextlib.asynccontextmanager
async def turn(ledger: Ledger, name: str) -> AsyncIterator[None]:
    """Wait until no other process has the turn of this name, and have it while the context is open.

    It keeps work from being done twice and fences nothing: one that slept longer than :data:`TTL_S` goes on beside
    the next. Time is real, as processes are, whatever clock the site's context has.

    Raises:
        UnavailableError: another process has had it for :data:`PATIENCE_S`.
    """
    holder = uuid.uuid4().hex
    await _wait(ledger, name, holder)
    renewals = asyncio.create_task(_renew(ledger, name, holder))
    try:
        yield
    finally:
        renewals.cancel()
        await asyncio.gather(renewals, return_exceptions=True)
        await asyncio.to_thread(ledger.resign, holder, name)


async def _wait(ledger: Ledger, name: str, holder: str) -> None:
    began = seen_at = time.monotonic()
    seen: Leader | None = None
    while True:
        silent = seen if time.monotonic() - seen_at >= TTL_S else None
        now = await asyncio.to_thread(ledger.lead, holder, "", silent, name)
        if now.holder == holder:
            return
        if now != seen:
            seen, seen_at = now, time.monotonic()
        if time.monotonic() - began >= PATIENCE_S:
            raise UnavailableError(
                f"{name}: another process has been at it for {PATIENCE_S:g} s. It is done again with the next run."
            )
        await asyncio.sleep(_AGAIN_S)


async def _renew(ledger: Ledger, name: str, holder: str) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await asyncio.to_thread(ledger.lead, holder, "", None, name)
