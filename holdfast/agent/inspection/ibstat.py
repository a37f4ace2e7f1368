"""InfiniBand adapters as ``ibstat`` shows them, where it is installed: for ports that sysfs does not list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.agent.inspection import ports
from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.network import Network
from holdfast.agent.inspection.ports import Port
from holdfast.agent.inspection.tool import Tool
from holdfast.policies.config.thresholds import NetworkLimits

_LINE = re.compile(
    r"^\s*(?:CA '(?P<adapter>[^']{1,64})'|Port (?P<port>\d{1,3}):"
    r"|(?P<name>State|Physical state|Rate): (?P<value>.{1,40}))\s*$"
)


class IbStat(Network):
    """The same check as of sysfs, in a container that has the devices and not the kernel's view of them."""

    name = "ibstat"

    def __init__(self, sys: Path, ibstat: Tool, limits: NetworkLimits, clock: Callable[[], float]) -> None:
        super().__init__(sys, limits, clock, read=self._reported)
        self._ibstat = ibstat

    def _gone(self, there: set[str]) -> list[Sign]:
        # The tool ends at the first adapter that it cannot read, and may be late: what it left out is not tested.
        return []

    def _reported(self) -> list[Port]:
        seen = {port.device for port in ports.read(self._sys)}
        return [port for port in read(self._ibstat.ask()) if port.device not in seen]


def read(output: str) -> list[Port]:
    """Return the ports in the output of ``ibstat``; one without a state is left out."""
    return list(_ports(output))


def _ports(output: str) -> Iterator[Port]:
    adapter, device, fields = "", "", {}
    for found in filter(None, map(_LINE.match, output.splitlines())):
        if found["name"]:
            fields[found["name"]] = found["value"]
            continue
        yield from _port(device, fields)
        adapter = found["adapter"] or adapter
        device, fields = (f"{adapter}/{found['port']}" if found["port"] else ""), {}
    yield from _port(device, fields)


def _port(device: str, fields: dict[str, str]) -> Iterator[Port]:
    state = fields.get("State")
    if device and state:
        rate = fields.get("Rate", "")
        more = f" ({fields['Physical state']})" if "Physical state" in fields else ""
        yield Port(
            device=device,
            up=state == "Active",
            state=f"{state}{more}",
            rate=float(rate) if rate.replace(".", "", 1).isdecimal() else None,
        )
