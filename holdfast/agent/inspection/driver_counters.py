"""Errors of Ethernet links that only the port's driver counts: ``ethtool -S``, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.agent.inspection import ports
from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.rates import Rates
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from holdfast.policies.classify.port_counters import faults
from holdfast.policies.config.thresholds import NetworkLimits


class DriverCounters:
    """A check of the ports that sysfs shows as up. What they counted before its first look does not count."""

    name = "driver_counters"

    def __init__(self, sys: Path, ethtool: Tool, limits: NetworkLimits, clock: Callable[[], float]) -> None:
        self._sys = sys
        self._ethtool = ethtool
        self._limits = limits
        self._clock = clock
        self._rates = Rates()

    def look(self) -> list[Sign]:
        """Return the signs of every port whose driver counts such errors; none without the tool."""
        if not self._ethtool.installed:
            return []
        found = ports.read(self._sys, self._limits.interfaces, self._limits.ignored)
        # InfiniBand ports have their own counters in sysfs.
        names = [port.device for port in found if port.up and "/" not in port.device]
        return [sign for name in names for sign in self._of(name)]

    def _of(self, device: str) -> Iterator[Sign]:
        counters = faults(self._ethtool.ask("-S", device))
        if not counters:
            return
        now, limit = self._clock(), self._limits.errors_per_minute
        rates = {name: 60 * self._rates.per_s((device, name), count, now) for name, count in counters.items()}
        worst = max(rates, key=lambda name: rates[name])
        bad = rates[worst] > limit
        words = f"{rates[worst]:.0f} {worst} per minute (limit {limit:g})" if bad else "no new errors"
        yield Sign(
            kind=AlertKind.NIC_ERRORS,
            ok=not bad,
            detail=f"{device}: {words}",
            device=device,
            value=rates[worst],
            limit=limit,
            # One alert for a bad link, whichever of its counters is ahead.
            evidence={"counter": "driver", "driver_counter": worst},
        )
