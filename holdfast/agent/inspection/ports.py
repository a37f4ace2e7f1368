"""Network ports as sysfs shows them: InfiniBand and Ethernet, state and counters in one form."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from holdfast.models.base import Frozen

IB_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_remote_physical_errors",
)
RDMA_ERRORS = ("packet_seq_err", "local_ack_timeout_err", "out_of_sequence", "rnr_nak_retry_err")
ETHERNET_ERRORS = ("rx_crc_errors", "rx_frame_errors", "rx_errors", "tx_errors", "tx_carrier_errors")
IB_LOST = ("port_xmit_discards", "port_rcv_errors")
ETHERNET_LOST = ("tx_dropped", "rx_missed_errors", "rx_errors", "tx_errors")
"""Not ``rx_dropped``: since Linux 2.6.37 it counts packets of protocols that the host does not speak, on healthy ports.

What a port drops for want of buffers is in ``rx_missed_errors`` (Documentation/networking/statistics.rst).
"""


class Port(Frozen):
    """One port now."""

    device: str
    """``mlx5_0/1`` or ``eth0``."""
    up: bool
    state: str
    """The kernel's word for the state."""
    changes: int | None = None
    """How often the link went down (InfiniBand) or changed (Ethernet) since boot."""
    changes_per_flap: int = 1
    rate: float | None = None
    """Speed, Gbit/s."""
    packets: int = 0
    lost: int = 0
    errors: dict[str, int] = Field(default_factory=dict)


def read(sys: Path, interfaces: Sequence[str] = (), ignored: Sequence[str] = ()) -> list[Port]:
    """Return all ports under ``sys``; a device that vanishes while it is read is left out."""
    return [*_infiniband(sys / "class/infiniband"), *_ethernet(sys / "class/net", interfaces, ignored)]


def traffic(sys: Path, interfaces: Sequence[str] = (), ignored: Sequence[str] = ()) -> int | None:
    """Return bytes that all ports under ``sys`` have sent and received; None: there are none. Reads little else."""
    found = [_ib_bytes(port) for port in (sys / "class/infiniband").glob("*/ports/*")]
    found += [
        _ethernet_bytes(port) for port in (sys / "class/net").glob("*") if _watched(port, interfaces, ignored)
    ]
    return sum(found) if found else None


def _ib_bytes(port: Path) -> int:
    # Counted in words of four bytes.
    return 4 * _sum(port / "counters", ("port_rcv_data", "port_xmit_data"))


def _ethernet_bytes(port: Path) -> int:
    return _sum(port / "statistics", ("rx_bytes", "tx_bytes"))


def _infiniband(root: Path) -> Iterator[Port]:
    for port in sorted(root.glob("*/ports/*")):
        state = _text(port / "state")
        if not state:
            continue
        counters, hardware = port / "counters", port / "hw_counters"
        names = {name: counters / name for name in IB_ERRORS} | {
            name: hardware / name for name in RDMA_ERRORS
        }
        yield Port(
            device=f"{port.parent.parent.name}/{port.name}",
            up="ACTIVE" in state,
            state=state,
            changes=_number(counters / "link_downed"),
            rate=_rate(_text(port / "rate")),
            packets=_sum(counters, ("port_rcv_packets", "port_xmit_packets")),
            lost=_sum(counters, IB_LOST),
            errors=_known(names),
        )


def _ethernet(root: Path, interfaces: Sequence[str], ignored: Sequence[str]) -> Iterator[Port]:
    for port in sorted(root.glob("*")):
        if not _watched(port, interfaces, ignored):
            continue
        state = _text(port / "operstate")
        if not state:
            continue
        statistics = port / "statistics"
        speed = _number(port / "speed")
        yield Port(
            device=port.name,
            up=state in ("up", "unknown"),
            state=state,
            changes=_number(port / "carrier_changes"),
            changes_per_flap=2,
            rate=speed / 1000 if speed and speed > 0 else None,
            packets=_sum(statistics, ("rx_packets", "tx_packets")),
            lost=_sum(statistics, ETHERNET_LOST),
            errors=_known({name: statistics / name for name in ETHERNET_ERRORS}),
        )


def _watched(port: Path, interfaces: Sequence[str], ignored: Sequence[str]) -> bool:
    if interfaces:
        return any(fnmatch.fnmatch(port.name, pattern) for pattern in interfaces)
    plain = not any(fnmatch.fnmatch(port.name, pattern) for pattern in ignored)
    return plain and (port / "device").exists() and not _on_usb(port)


def _on_usb(port: Path) -> bool:
    """Return whether it hangs on USB, as the port to the machine's own BMC does: it goes down when that restarts."""
    try:
        return os.path.basename(os.readlink(port / "device/subsystem")) == "usb"
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    try:
        return int(text)
    except ValueError:
        return None


def _sum(folder: Path, names: Sequence[str]) -> int:
    return sum(_number(folder / name) or 0 for name in names)


def _known(files: dict[str, Path]) -> dict[str, int]:
    found = {name: _number(path) for name, path in files.items()}
    return {name: value for name, value in found.items() if value is not None}


def _rate(text: str) -> float | None:
    """Return ``200 Gb/sec (4X HDR)`` as 200.0."""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return None
