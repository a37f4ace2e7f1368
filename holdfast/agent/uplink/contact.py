"""Time of the gateway's last contact, and the lease that it granted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from holdfast.models.agent import Contact, Heard, Witness
from holdfast.secret import Keys

_GATEWAY = "X-Holdfast-Gateway"
_GAP_S = 5.0
"""Where no lease is granted: a longer silence interrupts the contact."""


def asked_by_gateway(secret: Keys) -> Mapping[str, str]:
    """Return headers that show an agent that the gateway itself asks whether the machine is alive."""
    return {"Authorization": secret.header, _GATEWAY: "1"}


def is_gateway(headers: Mapping[str, str], secret: Keys) -> bool:
    """Return whether a request is the gateway's own question."""
    return _GATEWAY.lower() in headers and secret.match(headers.get("authorization"))


class Standing:
    """Contact of this machine with the gateway. Times are of the monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = 0.0
        """How long ranks may run without the gateway; 0: it named no limit."""
        self.witnesses: tuple[Witness, ...] = ()
        self._now = now
        self._heard_at = self._since = now()

    def answered(self, asked_at: float, heard: Heard) -> None:
        """Record that the gateway answered a heartbeat that was sent at ``asked_at``."""
        self.witnesses = heard.witnesses
        if heard.renews:
            self.lease_s = heard.lease_s
            self._extend(asked_at)

    def contacted(self, asked_at: float) -> None:
        """Record that the gateway answered a request that was sent at ``asked_at``, and granted nothing by it."""
        self._extend(asked_at)

    def asked(self) -> None:
        """Record that the gateway asked whether this machine is alive: it receives the answer."""
        self._extend(self._now())

    @property
    def silent_s(self) -> float:
        """Seconds since the gateway's last contact."""
        return self._now() - self._heard_at

    def contact(self) -> Contact:
        """Return the contact, for a machine that does not hear the gateway."""
        return Contact(heard_s=self.silent_s, since_s=self._now() - self._since)

    def _extend(self, at: float) -> None:
        if at - self._heard_at > (self.lease_s or _GAP_S) / 2:
            self._since = at
        self._heard_at = max(self._heard_at, at)
