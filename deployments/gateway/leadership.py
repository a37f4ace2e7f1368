"""Several gateways over one ledger: one leads, the others stand by and take over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.storage.ledger import Ledger

log = logging.getLogger("holdfast.gateway")

TTL_S = 5.0
"""A leader that did not renew for so long is replaced."""
RENEW_S = 1.0


class Led(Protocol):
    """What only the leader does: the loops of the gateway."""

    async def resume(self) -> None:
        """Take up what was going on."""
        ...

    def start(self) -> None:
        """Start the loops."""
        ...

    async def stop(self) -> None:
        """Stop them."""
        ...


class Leadership:
    """Holds the lease of the leader, and runs the gateway's loops as long as it does.

    While the ledger does not answer the leader goes on leading: nobody else can take its place, and every write is
    checked by the ledger itself (:meth:`~holdfast.storage.ledger.Ledger.write_only_while_leading`).
    """

    def __init__(self, ledger: Ledger, led: Led, holder: str, url: str) -> None:
        self._ledger = ledger
        self._led = led
        self._holder = holder
        self._url = url
        self._loop: asyncio.Task[None] | None = None
        self.leads = False
        self.leader_url = ""

    async def open(self) -> None:
        """Look who leads, then again and again; returns once that is known, and the loops run if it is this one."""
        self._ledger.write_only_while_leading(self._holder)
        await self._look()
        self._loop = asyncio.create_task(self._repeat(self._look), name="leadership")

    async def close(self) -> None:
        """Stop the loops and let another one lead at once."""
        if self._loop:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self.leads:
            self.leads = False
            await self._led.stop()
            with suppress(HoldfastError):
                await asyncio.to_thread(self._ledger.resign, self._holder)

    def refuse(self) -> UnavailableError:
        """The answer of one that stands by."""
        return UnavailableError(
            f"this gateway stands by; the one at {self.leader_url or 'another address'} leads: ask that one"
        )

    async def _look(self) -> None:
        leader = await asyncio.to_thread(self._ledger.lead, self._holder, self._url, TTL_S)
        self.leader_url = leader.url
        mine = leader.holder == self._holder
        if mine and not self.leads:
            log.info("this gateway leads (%s)", self._holder)
            await self._led.resume()
            self._led.start()
            self.leads = True
        elif self.leads and not mine:
            log.warning("gateway %s leads now; this one stands by", leader.holder)
            self.leads = False
            await self._led.stop()

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await work()
            except HoldfastError as error:
                log.warning("leadership: %s", error)
            except Exception:
                log.exception("leadership: this round failed")
