"""Detect machines whose clock is off, from the time at which each heartbeat was made.

A heartbeat only gets older in transit, so the smallest difference among several heartbeats is the best estimate.
"""

from __future__ import annotations

from collections import deque

from holdfast.deployments.gateway.intake.correlate import Correlator
from holdfast.deployments.gateway.site import Site, log
from holdfast.models.agent import Heartbeat
from holdfast.models.alert import Alert, AlertKind

SAMPLES = 20


class Clocks:
    """The last differences of each machine's present incarnation."""

    def __init__(self, site: Site, correlator: Correlator) -> None:
        self._site = site
        self._correlator = correlator
        self._limit_s = site.policy.detect.host.clock_skew_s
        self._seen: dict[str, tuple[str, deque[float]]] = {}
        self._reported: set[tuple[str, str]] = set()

    def observe(self, beat: Heartbeat) -> None:
        """Take one heartbeat of an admitted machine."""
        incarnation, seen = self._seen.get(beat.machine, ("", deque()))
        if incarnation != beat.incarnation:
            seen = deque(maxlen=SAMPLES)
            self._seen[beat.machine] = (beat.incarnation, seen)
        seen.append(self._site.clock.now() - beat.at)

    async def tick(self) -> None:
        """Run one round: report each skewed machine once, and again only after its clock was right in between."""
        machines = self._site.fleet.machines
        self._seen = {name: seen for name, seen in self._seen.items() if name in machines}
        skewed = {
            (name, incarnation): skew
            for name, (incarnation, seen) in self._seen.items()
            if len(seen) == SAMPLES and abs(skew := min(seen)) > self._limit_s
        }
        self._reported &= skewed.keys()
        for name, incarnation in sorted(skewed.keys() - self._reported):
            skew = skewed[name, incarnation]
            log.warning(
                "machine %s: its clock is %.1f s %s", name, abs(skew), "behind" if skew > 0 else "ahead"
            )
            await self._correlator.accept_all([self._alert(name, incarnation, skew)])
            self._reported.add((name, incarnation))

    def _alert(self, machine: str, incarnation: str, skew: float) -> Alert:
        now = self._site.clock.now()
        return Alert(
            kind=AlertKind.CLOCK_SKEW,
            machine=machine,
            incarnation=incarnation,
            at=now,
            fingerprint=f"clock_skew:{machine}:{incarnation}:{now:.0f}",
            evidence={
                "value": round(-skew, 3),
                "limit": self._limit_s,
                "detail": f"its clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead'}",
            },
        )
