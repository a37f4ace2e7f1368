"""RDMA through each active port of the machine, by the vendors' own tool (MegaScale section 5: loopback bandwidth).

``ib_write_bw`` (perftest) writes from the adapter to itself: through PCIe and the adapter, not through memory alone.
Data that a host sends to its own address over Ethernet never leaves the kernel, and does not test the interface: such
interfaces are not tested here, and their cables are tested between neighbours (``all_gather``).
"""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.commands import run
from holdfast.models.alert import Finding

TOOL = "ib_write_bw"
ROUNDS = 3
_SECONDS = 1
_SYSFS = Path("/sys/class/infiniband")
_START_S = 0.3
_EACH_S = ROUNDS * (_SECONDS + _START_S + 0.7)
"""All rounds of one port, with what the tool needs to connect: with fewer of them a slow adapter is hardly named."""
_RESULT = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+(?P<average>[\d.]+)\s+[\d.]+\s*$", re.MULTILINE)


async def check(
    machine: str, timeout_s: float, *, program: str = TOOL, sysfs: Path = _SYSFS
) -> list[Finding]:
    """Return one finding per active port with its bandwidth; one with the reason, where nothing can be tested.

    One after the other where the time allows it, else several at once: as few as give each of them all its rounds.
    """
    ports = _active(sysfs)
    tool = shutil.which(program)
    if not ports:
        return [_untested(machine, "no active RDMA adapter; Ethernet is tested between neighbours")]
    if tool is None:
        return [_untested(machine, f"{program} is not installed (package perftest)")]
    turns = in_turns(ports, timeout_s)
    found: list[Finding] = []
    for turn in turns:
        found += await asyncio.gather(
            *(_measured(machine, port, tool, timeout_s / len(turns)) for port in turn)
        )
    return found


@dataclass(frozen=True)
class ActivePort:
    """An active port of an adapter."""

    adapter: str
    number: str
    rate: str

    @property
    def name(self) -> str:
        """The adapter's, with the port where it is not the first."""
        return self.adapter if self.number == "1" else f"{self.adapter}/{self.number}"


def in_turns(ports: Sequence[ActivePort], timeout_s: float) -> list[Sequence[ActivePort]]:
    """Return the ports in turns, one after the other; those of one turn are tested at once."""
    at_once = math.ceil(len(ports) / max(1, int(timeout_s / _EACH_S)))
    return [ports[first : first + at_once] for first in range(0, len(ports), at_once)]


def _active(sysfs: Path) -> list[ActivePort]:
    found: list[ActivePort] = []
    for state in sorted(sysfs.glob("*/ports/*/state")):
        try:
            if "ACTIVE" in state.read_text():
                rate = state.with_name("rate").read_text().strip()
                found.append(ActivePort(state.parents[2].name, state.parent.name, rate))
        except OSError:
            continue
    return found


async def _measured(machine: str, port: ActivePort, tool: str, timeout_s: float) -> Finding:
    rates: list[float] = []
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(ROUNDS):
                rates.append(await _write_bandwidth(tool, port, timeout_s))
    except (TimeoutError, OSError, ValueError) as error:
        if not rates:
            return _untested(machine, f"{port.name}: {error or 'no result in time'}")
    return Finding(
        check="nic",
        machine=machine,
        ok=True,
        detail=f"{port.name} ({port.rate}): {max(rates):.1f} Gb/s",
        value=max(rates),
        unit="Gb/s",
        repeats=len(rates),
        kind=f"{port.name}, {port.rate}",
    )


async def _write_bandwidth(tool: str, through: ActivePort, timeout_s: float) -> float:
    """Return Gb/s of one run, with a server and a client on the same port.

    Raises:
        TimeoutError: it did not end in time.
        ValueError: there is no figure in the tool's output.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    device = ("-d", through.adapter, "-i", through.number)
    order = (tool, *device, "-p", str(port), "-D", str(_SECONDS), "-F", "--report_gbits")
    server = asyncio.create_task(run(order, timeout_s))
    try:
        await asyncio.sleep(_START_S)  # it reports nothing when it starts to listen
        client = await run((*order, "127.0.0.1"), timeout_s)
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    if client.status is None:
        raise TimeoutError
    output = client.out + client.err
    found = _RESULT.findall(output)
    if client.status or not found:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise ValueError(f"{Path(tool).name}: status {client.status}, {last[0][:200]}")
    return float(found[-1])


def _untested(machine: str, why: str) -> Finding:
    """Return a finding that accuses no machine."""
    return Finding(check="nic", machine=machine, ok=True, detail=f"not tested: {why}")
