"""Time of the gateway's last contact, and the lease that it granted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from holdfast.models.agent import Contact, Heard, Witness
from holdfast.policies.detect.silence import REMEMBERED_S
from holdfast.secret import Keys

_GATEWAY = "X-Holdfast-Gateway"
_TERM = "X-Holdfast-Term"
_PATIENCE = 3.0
"""Leases for which a later leader must have been silent before an earlier term counts: the ledger was put back then."""
_GAP_S = 5.0
"""Where no lease is granted: a longer silence interrupts the contact."""


def asked_by_gateway(secret: Keys, term: int = 0) -> Mapping[str, str]:
    """Return headers that show an agent that the gateway itself asks whether the machine is alive."""
    return {"Authorization": secret.header, _GATEWAY: "1"} | ({_TERM: str(term)} if term else {})


def term_of(headers: Mapping[str, str]) -> int:
    """Return the term of the gateway that asks; 0: it names none."""
    term = headers.get(_TERM.lower(), "")
    return int(term) if term.isdecimal() and len(term) < 19 else 0


def is_gateway(headers: Mapping[str, str], secret: Keys) -> bool:
    """Return whether a request is the gateway's own question."""
    return _GATEWAY.lower() in headers and secret.match(headers.get("authorization"))


class Standing:
    """Contact of this machine with the gateway. Times are of the monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = 0.0
        """How long ranks may run without the gateway; 0: it named no limit."""
        self.longest_delay_s = 0.0
        """A longer silence was no delay (the host slept, the gateway was away), and hides none; 0: not given."""
        self.witnesses: tuple[Witness, ...] = ()
        self._now = now
        self._contact_at = self._since = self._led_at = now()
        self._silences: deque[tuple[float, float]] = deque()
        """When each ended that no later one exceeds, and how long it was: the first is the longest."""
        self._term = 0
        """The newest leader's, which was heard at ``_led_at``."""

    def answered(self, asked_at: float, granted: Heard) -> bool:
        """Record that the gateway answered a heartbeat that was sent at ``asked_at``.

        Return False, and record nothing, where another gateway was heard that leads since: that one may have placed
        elsewhere what this one lets run on.
        """
        if not self._leads(granted.term):
            return False
        self.witnesses = granted.witnesses
        if granted.renews:
            self.lease_s, self.longest_delay_s = granted.lease_s, granted.longest_delay_s
            self._extend(asked_at)
        return True

    def contacted(self, asked_at: float) -> None:
        """Record that the gateway answered a request that was sent at ``asked_at``, and granted nothing by it."""
        self._extend(asked_at)

    def asked(self, term: int = 0) -> None:
        """Record that the gateway asked whether this machine is alive: it receives the answer."""
        if self._leads(term):
            self._extend(self._now())

    def _leads(self, term: int) -> bool:
        """Return whether no later leader than that of ``term`` was heard lately; note it."""
        now = self._now()
        if term and term < self._term and now - self._led_at <= _PATIENCE * (self.lease_s or _GAP_S):
            return False
        if term:
            if term != self._term and self._term:
                # Another leader's contact begins here: it may not have reached other machines yet.
                self._since = now
            self._term, self._led_at = term, now
        return True

    @property
    def silent_s(self) -> float:
        """Seconds since the gateway's last contact."""
        return self._now() - self._contact_at

    def longest_s(self) -> float:
        """Return the longest delay within the last minutes, in seconds, the present silence left out."""
        while self._silences and self._now() - self._silences[0][0] > REMEMBERED_S:
            self._silences.popleft()
        return self._silences[0][1] if self._silences else 0.0

    def contact(self) -> Contact:
        """Return the contact, for a machine that does not hear the gateway."""
        return Contact(heard_s=self.silent_s, since_s=self._now() - self._since)

    def _extend(self, at: float) -> None:
        if at - self._contact_at > (self.lease_s or _GAP_S) / 2:
            self._since = at
        if not self.longest_delay_s or self.silent_s <= self.longest_delay_s:
            while self._silences and self._silences[-1][1] <= self.silent_s:
                self._silences.pop()
            self._silences.append((self._now(), self.silent_s))
        self._contact_at = max(self._contact_at, at)
