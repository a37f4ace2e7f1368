"""Ends the ranks of a machine that is cut off, before another machine takes their place.

The decision is :mod:`holdfast.policies.detect.silence`; here the time is watched, the gateway is tried once more on a
connection of its own, and other machines are asked whether they hear it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from holdfast.agent.client import AgentClient
from holdfast.agent.uplink.contact import Standing
from holdfast.errors import HoldfastError, SilentError
from holdfast.models.agent import Witness
from holdfast.policies.detect import silence
from holdfast.policies.detect.silence import AskedPeer
from holdfast.secret import Keys
from holdfast.tls import PLAIN, Tls

_log = logging.getLogger(__name__)

LOOK_S = 0.1
LONGEST_LOOK_S = 1.0
"""Ranks may begin, and a lease may be granted, at any time."""


class LeaseWatch:
    """Watches the lease of a machine while ranks run on it."""

    def __init__(
        self,
        standing: Standing,
        secret: Keys,
        *,
        probe_gateways: Callable[[float], Awaitable[None]],
        runs: Callable[[], bool],
        stop: Callable[[str], Awaitable[None]],
        tls: Tls = PLAIN,
    ) -> None:
        """``probe_gateways`` tries them for so many seconds, ``runs`` is whether ranks run, ``stop`` ends them."""
        self._standing = standing
        self._secret = secret
        self._probe_gateways = probe_gateways
        self._runs = runs
        self._stop = stop
        self._tls = tls

    async def run(self) -> None:
        """Watch the lease without end."""
        while True:
            await asyncio.sleep(self._until_due_s())
            if self.is_due and (why := await self.why_cut_off()):
                _log.error("%s: this machine is cut off, its ranks end", why)
                try:
                    await self._stop(why)
                except HoldfastError as error:
                    # What is left is ended again: the agent lives on, with what it has in memory.
                    _log.error("%s", error)

    def _until_due_s(self) -> float:
        """Return seconds until the next look: no sooner than it may matter, since a wake-up costs the ranks time."""
        lease_s = self._standing.lease_s
        if not lease_s or not self._runs():
            return LONGEST_LOOK_S
        return min(LONGEST_LOOK_S, max(LOOK_S, silence.ASK_SHARE * lease_s - self._standing.silent_s))

    @property
    def is_due(self) -> bool:
        """Whether ranks run, and the gateway has been silent for so long that others must be asked."""
        lease_s = self._standing.lease_s
        return bool(lease_s) and self._standing.silent_s >= silence.ASK_SHARE * lease_s and self._runs()

    async def why_cut_off(self) -> str:
        """Return why this machine must consider itself cut off; empty when it need not."""
        # The silence when others were asked: what they answer is of then, and the last try takes its time.
        lease_s, silent_s = self._standing.lease_s, self._standing.silent_s
        patience_s = silence.ANSWER_SHARE * lease_s
        _, asked = await asyncio.gather(self._probe_gateways(patience_s), self._ask_all(patience_s))
        if not self.is_due:
            return ""  # the gateway answered after all
        return silence.why_cut_off(silent_s, lease_s, asked)

    async def _ask_all(self, patience_s: float) -> Sequence[AskedPeer]:
        return await asyncio.gather(*(self._ask(one, patience_s) for one in self._standing.witnesses))

    async def _ask(self, witness: Witness, patience_s: float) -> AskedPeer:
        try:
            async with (
                asyncio.timeout(patience_s),
                AgentClient(witness.address, self._secret, tls=self._tls) as agent,
            ):
                contact = await agent.contact(timeout_s=patience_s)
        except (TimeoutError, SilentError):
            return AskedPeer(name=witness.name, reached=False)
        except (HoldfastError, ValueError) as error:
            # It refuses, or what listens there by now is no agent: the network works, and it hears no gateway.
            _log.debug("%s: %s", witness.name, error)
            return AskedPeer(name=witness.name, reached=True)
        return AskedPeer(name=witness.name, reached=True, contact=contact)
