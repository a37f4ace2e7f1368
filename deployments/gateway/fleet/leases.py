"""Leases that answers to heartbeats grant: longer ones to machines that hear the gateway late."""

from __future__ import annotations

import asyncio
import math

from holdfast.deployments.gateway.site import Site, log
from holdfast.errors import HoldfastError
from holdfast.models.agent import Heartbeat
from holdfast.models.machine import Machine
from holdfast.policies.detect import silence

_KNOWN_S = 1.0
"""The view of the ledger is younger than this."""


class Leases:
    """Grants no more than the ledger has on record: an eviction reads there how long to wait for a lost machine."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._known: dict[str, float] = {}
        """The lease that was recorded last: the view in memory may be older, and higher."""
        self._needed_at: dict[str, float] = {}
        """When a longer lease than the usual was granted as recorded last (monotonic)."""
        self._recording: set[str] = set()

    def grant(self, machine: Machine, beat: Heartbeat) -> float:
        """Return the lease of a machine that sent a heartbeat, in seconds; have its record changed where it must be."""
        site, name, now = self._site, machine.name, self._site.clock.monotonic()
        usual_s, policy = site.lease_s, site.policy.gateway
        wanted_s = silence.wanted_lease_s(site.settings.heartbeat_s, policy, beat.silence_s)
        recorded_s = min(site.lease_of(machine), self._known.get(name, math.inf))
        if wanted_s == recorded_s == usual_s:
            self._needed_at.pop(name, None)
            return usual_s
        if wanted_s >= recorded_s:
            self._needed_at[name] = now
        over = now - self._needed_at.setdefault(name, now) > recorded_s + _KNOWN_S
        if (wanted_s > recorded_s or over) and name not in self._recording:
            self._recording.add(name)
            site.spawn(self._record(machine, wanted_s, raises=wanted_s > recorded_s), f"lease of {name}")
        return min(wanted_s, recorded_s)

    async def _record(self, machine: Machine, lease_s: float, *, raises: bool) -> None:
        site, name = self._site, machine.name
        self._known = {each: seconds for each, seconds in self._known.items() if each in site.fleet.machines}
        if not raises:
            self._known[name] = lease_s
        try:
            more_s = 0.0 if lease_s <= site.lease_s else lease_s
            if await asyncio.to_thread(site.ledger.set_lease, name, machine.incarnation, more_s) and raises:
                self._known[name] = lease_s
                log.warning(
                    "machine %s hears this gateway late: it is given up after %g s from now on", name, lease_s
                )
        except HoldfastError as error:
            log.debug("lease of %s: %s", name, error)  # the next heartbeat tries it again
        finally:
            self._recording.discard(name)
