"""RDMA through each adapter of the machine, by the vendors' own tool (MS, section 5: loopback bandwidth of each NIC).

``ib_write_bw`` (perftest) writes from the adapter to itself: through PCIe and the adapter, not through memory alone.
What a host sends to its own address over Ethernet never leaves the kernel, and says nothing of the interface: such
interfaces are not tested here, and their cables are tested between neighbours (``all_gather``).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
from pathlib import Path

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
    """One finding per active adapter with its bandwidth; one that says why, where nothing can be tested."""
    ports = _active(sysfs)
    tool = shutil.which(program)
    if not ports:
        return [_untested(machine, "no active RDMA adapter; Ethernet is tested between neighbours")]
    if tool is None:
        return [_untested(machine, f"{program} is not installed (package perftest)")]
    return [await _adapter(machine, adapter, rate, tool, timeout_s / len(ports)) for adapter, rate in ports]


def _active(sysfs: Path) -> list[tuple[str, str]]:
    """Adapters with an active port, and its rate."""
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
                rates.append(await _write_bandwidth(tool, adapter))
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


async def _write_bandwidth(tool: str, adapter: str) -> float:
    """Gb/s of one run, with a server and a client on the same adapter.

    Raises:
        ValueError: no figure in what the tool said.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    order = (tool, "-d", adapter, "-p", str(port), "-D", str(_SECONDS), "-F", "--report_gbits")
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(*order, stdout=quiet, stderr=quiet, start_new_session=True)
    client = None
    try:
        await asyncio.sleep(_START_S)  # it says nothing when it listens
        client = await asyncio.create_subprocess_exec(
            *order,
            "127.0.0.1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        said = (await client.communicate())[0].decode(errors="replace")
    finally:
        for process in (server, client):
            if process is not None and process.returncode is None:
                # With what it started: that would hold the pipe, and its end would be waited for.
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    found = _RESULT.findall(said)
    if client.returncode or not found:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise ValueError(f"{Path(tool).name}: status {client.returncode}, {last[0][:200]}")
    return float(found[-1])


def _untested(machine: str, why: str) -> Finding:
    """Accuses nobody."""
    return Finding(check="nic", machine=machine, ok=True, detail=f"not tested: {why}")
