"""Network ports: down, flapping, slower than they were, breaking or losing packets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.agent.inspection import ports
from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.ports import Port
from holdfast.agent.inspection.rates import Rates
from holdfast.models.alert import AlertKind
from holdfast.policies.config.thresholds import NetworkLimits


class Network:
    """A port that never was up is not cabled. What a port did before this check was made does not count."""

    name = "network"

    def __init__(
        self,
        sys: Path,
        limits: NetworkLimits,
        clock: Callable[[], float],
        read: Callable[[], Sequence[Port]] | None = None,
    ) -> None:
        """Read ports from ``sys``, or with ``read``, which may wait: first when this check looks."""
        self._sys = sys
        self._read = read
        self._limits = limits
        self._clock = clock
        self._best: dict[str, float] = {}  # device -> its best speed while it was up
        self._rates = Rates()
        self._was_down: set[str] = set()
        if read is None:
            # From now on: what happens before the first look counts as well.
            self.look()

    def look(self) -> list[Sign]:
        """Return bad signs; a good one per port that is up."""
        now = self._clock()
        found = self._ports()
        signs = [sign for port in found for sign in self._of(port, now)]
        there = {port.device for port in found}
        return signs + self._gone(there)

    def _gone(self, there: set[str]) -> list[Sign]:
        return [self._down(name, "gone") for name in self._best if name not in there]

    def _ports(self) -> Sequence[Port]:
        if self._read is not None:
            return self._read()
        return ports.read(self._sys, self._limits.interfaces, self._limits.ignored)

    def _of(self, port: Port, now: float) -> Iterator[Sign]:
        flaps = self._rates.growth((port.device, "changes"), port.changes or 0, now)[0]
        errors = list(self._errors(port, now))
        loss = list(self._loss(port, now))
        known = port.device in self._best
        if not port.up:
            if known:
                self._was_down.add(port.device)
                yield self._down(port.device, port.state)
            return
        best = self._best[port.device] = max(self._best.get(port.device, 0.0), port.rate or 0.0)
        # A port that was reported down and came up again is no further fault.
        expected = 1 if port.device in self._was_down and port.changes_per_flap > 1 else 0
        self._was_down.discard(port.device)
        bad = [*errors, *loss]
        if known and flaps - expected >= port.changes_per_flap:
            bad.append(self._flap(port, (flaps - expected) // port.changes_per_flap))
        if port.rate and port.rate < best:
            bad.append(self._slow(port, best))
        yield from bad or [
            Sign(
                kind=AlertKind.NIC_DOWN, ok=True, detail=f"{port.device} is {port.state}", device=port.device
            )
        ]

    def _errors(self, port: Port, now: float) -> Iterator[Sign]:
        limit = self._limits.errors_per_minute
        for name, count in port.errors.items():
            rate = 60 * self._rates.per_s((port.device, name), count, now)
            if rate > limit:
                text = f"{port.device}: {rate:.0f} {name} per minute (limit {limit:g})"
                yield _sign(AlertKind.NIC_ERRORS, port.device, text, rate, limit, counter=name)

    def _loss(self, port: Port, now: float) -> Iterator[Sign]:
        packets = self._rates.growth((port.device, "packets"), port.packets, now)[0]
        lost = self._rates.growth((port.device, "lost"), port.lost, now)[0]
        if packets + lost < self._limits.loss_packets:
            return
        share, limit = lost / (packets + lost), self._limits.loss_share
        if share > limit:
            text = f"{port.device}: {100 * share:.1f} % of {packets + lost:.0f} packets lost (limit {100 * limit:g} %)"
            yield _sign(AlertKind.PACKET_LOSS, port.device, text, share, limit)

    def _flap(self, port: Port, times: float) -> Sign:
        text = f"{port.device} went down and came back {times:.0f} times"
        return _sign(AlertKind.NIC_FLAPPING, port.device, text, times, None)

    def _slow(self, port: Port, best: float) -> Sign:
        text = f"{port.device} runs at {port.rate:g} Gbit/s, before at {best:g}"
        return _sign(AlertKind.NIC_ERRORS, port.device, text, port.rate, best, counter="rate")

    def _down(self, device: str, state: str) -> Sign:
        return _sign(AlertKind.NIC_DOWN, device, f"{device} is {state}, and was up", None, None, state=state)


def _sign(
    kind: AlertKind, device: str, text: str, value: float | None, limit: float | None, **evidence: str
) -> Sign:
    return Sign(
        kind=kind, ok=False, detail=text, device=device, value=value, limit=limit, evidence=dict(evidence)
    )
