"""When the gateway was last heard, and what it granted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from holdfast.models.agent import Contact, Heard, Witness
from holdfast.secret import Keys

_GATEWAY = "X-Holdfast-Gateway"
_GAP_S = 5.0
"""Where no lease is granted: a longer silence interrupts the contact."""


def asked_by_gateway(secret: Keys) -> Mapping[str, str]:
    """Headers by which an agent knows that it is the gateway that asks whether it lives."""
    return {"Authorization": secret.header, _GATEWAY: "1"}


def is_gateway(headers: Mapping[str, str], secret: Keys) -> bool:
    """Whether a request is the gateway's own question."""
    return _GATEWAY.lower() in headers and secret.match(headers.get("authorization"))


class Standing:
    """How this machine stands with the gateway. Times are of the monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = 0.0
        """How long ranks may run without the gateway; 0: it named no limit."""
        self.witnesses: tuple[Witness, ...] = ()
        self._now = now
        self._heard_at = self._since = now()

    def answered(self, asked_at: float, heard: Heard) -> None:
        """The gateway answered a heartbeat that was sent at ``asked_at``."""
        self.witnesses = heard.witnesses
        if heard.renews:
            self.lease_s = heard.lease_s
            self._extend(asked_at)

    def contacted(self, asked_at: float) -> None:
        """The gateway answered what was sent at ``asked_at``, and granted nothing by it."""
        self._extend(asked_at)

    def asked(self) -> None:
        """The gateway asked whether this machine lives: it hears the answer."""
        self._extend(self._now())

    @property
    def silent_s(self) -> float:
        """Since the gateway's last sign."""
        return self._now() - self._heard_at

    def contact(self) -> Contact:
        """For a machine that does not hear the gateway."""
        return Contact(heard_s=self.silent_s, since_s=self._now() - self._since)

    def _extend(self, at: float) -> None:
        if at - self._heard_at > (self.lease_s or _GAP_S) / 2:
            self._since = at
        self._heard_at = max(self._heard_at, at)
