"""Several gateways over one ledger: one leads, the others stand by and take over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.models.lease import Leader
from holdfast.storage.ledger import Ledger

log = logging.getLogger("holdfast.gateway")

TTL_S = 5.0
"""A leader that did not renew for so long is replaced."""
RENEW_S = 1.0


class Led(Protocol):
    """The part that only the leader runs: the loops of the gateway."""

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

    Whether a leader is alive is seen by counters that change, on this process's own monotonic clock: no clock that is
    set, here or at the database, makes or ends a leader. A leader that did not reach the ledger for :data:`TTL_S` may
    have been replaced: from then on it acts no more (:meth:`require_sure`), and every write is checked by the ledger
    itself (:meth:`~holdfast.storage.ledger.Ledger.write_only_while_leading`). It still answers heartbeats: the ledger
    may be away for all, and ranks must not end for that.
    """

    def __init__(
        self, ledger: Ledger, led: Led, holder: str, url: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._renewed_at = -TTL_S
        self._seen: Leader | None = None
        self._seen_at = 0.0
        self._ledger = ledger
        self._led = led
        self._holder = holder
        self._url = url
        self._loop: asyncio.Task[None] | None = None
        self.leads = False
        self._takes_up = False
        """It leads in the ledger, and takes up what was going on."""
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

    def term(self) -> int:
        """Return the token with which this gateway leads; 0: it does not."""
        return self._seen.token if self.leads and self._seen is not None else 0

    def require_sure(self) -> None:
        """Check that no other gateway can lead by now.

        Raises:
            UnavailableError: the ledger did not answer for :data:`TTL_S`, so that another gateway may lead.
        """
        silent_s = self._monotonic() - self._renewed_at
        if not (self.leads or self._takes_up) or silent_s >= TTL_S:
            raise UnavailableError(
                f"this gateway has not reached the ledger for {silent_s:.0f} s, and another one may lead: "
                "it does not act"
            )

    def refuse(self) -> UnavailableError:
        """Return the answer of a gateway on standby."""
        return UnavailableError(
            f"this gateway stands by; the one at {self.leader_url or 'another address'} leads: ask that one"
        )

    async def _look(self) -> None:
        asked = self._monotonic()
        silent = self._seen if asked - self._seen_at >= TTL_S else None
        leader = await asyncio.to_thread(self._ledger.lead, self._holder, self._url, silent)
        if leader != self._seen:
            self._seen, self._seen_at = leader, self._monotonic()
        self.leader_url = leader.url
        mine = leader.holder == self._holder
        if mine:
            self._renewed_at = asked
        if mine and not self.leads:
            log.info("this gateway leads (%s)", self._holder)
            await self._take_up()
            self._led.start()
            self.leads = True
        elif self.leads and not mine:
            log.warning("gateway %s leads now; this one stands by", leader.holder)
            self.leads = False
            await self._led.stop()

    async def _take_up(self) -> None:
        """Take up what was going on, and renew the lease meanwhile.

        On a slow ledger that may last longer than :data:`TTL_S`: two gateways would replace one another for ever.
        """
        self._takes_up = True
        resuming = asyncio.create_task(self._led.resume(), name="resume")
        try:
            while not (await asyncio.wait({resuming}, timeout=RENEW_S))[0]:
                asked = self._monotonic()
                with suppress(HoldfastError):
                    leader = await asyncio.to_thread(self._ledger.lead, self._holder, self._url, None)
                    if leader.holder == self._holder:
                        self._seen, self._seen_at, self._renewed_at = leader, self._monotonic(), asked
            await resuming
        finally:
            self._takes_up = False
            if not resuming.done():
                resuming.cancel()
                await asyncio.gather(resuming, return_exceptions=True)

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
