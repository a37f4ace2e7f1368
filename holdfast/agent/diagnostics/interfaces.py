"""RDMA through each adapter of the machine, by the vendors' own tool (MegaScale section 5: loopback bandwidth).

``ib_write_bw`` (perftest) writes from the adapter to itself: through PCIe and the adapter, not through memory alone.
Data that a host sends to its own address over Ethernet never leaves the kernel, and does not test the interface: such
interfaces are not tested here, and their cables are tested between neighbours (``all_gather``).
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from pathlib import Path

from holdfast.commands import run
from holdfast.models.alert import Finding

TOOL = "ib_write_bw"
ROUNDS = 3
_SECONDS = 1
_SYSFS = Path("/sys/class/infiniband")
_START_S = 0.3
_RESULT = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+(?P<average>[\d.]+)\s+[\d.]+\s*$", re.MULTILINE)


async def check(
    machine: str, timeout_s: float, *, program: str = TOOL, sysfs: Path = _SYSFS
) -> list[Finding]:
    """Return one finding per active adapter with its bandwidth; one with the reason, where nothing can be tested."""
    ports = _active(sysfs)
    tool = shutil.which(program)
    if not ports:
        return [_untested(machine, "no active RDMA adapter; Ethernet is tested between neighbours")]
    if tool is None:
        return [_untested(machine, f"{program} is not installed (package perftest)")]
    return [await _adapter(machine, adapter, rate, tool, timeout_s / len(ports)) for adapter, rate in ports]


def _active(sysfs: Path) -> list[tuple[str, str]]:
    """Return adapters with an active port, and its rate."""
    found: dict[str, str] = {}
    for state in sorted(sysfs.glob("*/ports/*/state")):
        try:
            if "ACTIVE" in state.read_text():
                found.setdefault(state.parents[2].name, state.with_name("rate").read_text().strip())
        except OSError:
            continue
    return list(found.items())


async def _adapter(machine: str, adapter: str, rate: str, tool: str, timeout_s: float) -> Finding:
    rates: list[float] = []
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(ROUNDS):
                rates.append(await _write_bandwidth(tool, adapter, timeout_s))
    except (TimeoutError, OSError, ValueError) as error:
        if not rates:
            return _untested(machine, f"{adapter}: {error or 'no result in time'}")
    return Finding(
        check="nic",
        machine=machine,
        ok=True,
        detail=f"{adapter} ({rate}): {max(rates):.1f} Gb/s",
        value=max(rates),
        unit="Gb/s",
        repeats=len(rates),
        kind=f"{adapter}, {rate}",
    )


async def _write_bandwidth(tool: str, adapter: str, timeout_s: float) -> float:
    """Return Gb/s of one run, with a server and a client on the same adapter.

    Raises:
        TimeoutError: it did not end in time.
        ValueError: there is no figure in the tool's output.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    order = (tool, "-d", adapter, "-p", str(port), "-D", str(_SECONDS), "-F", "--report_gbits")
    server = asyncio.create_task(run(order, timeout_s))
    try:
        await asyncio.sleep(_START_S)  # it reports nothing when it starts to listen
        client = await run((*order, "127.0.0.1"), timeout_s)
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
    if client.status is None:
        raise TimeoutError
    said = client.out + client.err
    found = _RESULT.findall(said)
    if client.status or not found:
        last = said.strip().splitlines()[-1:] or ["no output"]
        raise ValueError(f"{Path(tool).name}: status {client.status}, {last[0][:200]}")
    return float(found[-1])


def _untested(machine: str, why: str) -> Finding:
    """Return a finding that accuses no machine."""
    return Finding(check="nic", machine=machine, ok=True, detail=f"not tested: {why}")
