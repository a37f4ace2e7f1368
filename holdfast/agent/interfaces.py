"""A transfer through each network interface of the machine, every byte compared (MS: loopback bandwidth of each NIC).

An interface is bound by its own address. The kernel may keep such a transfer inside the host: what the cable and
the switch do to it is tested between neighbours.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
import zlib
from dataclasses import dataclass

import psutil

from holdfast.models.alert import Finding

PAYLOAD_BYTES = 8 << 20
_CHUNK = 1 << 20
_VIRTUAL = ("docker", "veth", "br-", "cni", "flannel", "cali", "virbr", "tun", "tap")


@dataclass(frozen=True)
class Interface:
    """An address to test."""

    name: str
    address: str


def interfaces() -> list[Interface]:
    """Interfaces that are up and have an address; the loopback only where there is no other."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        Interface(name, address.address)
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if address.family is socket.AF_INET and name in up and not name.startswith(_VIRTUAL)
    ]
    real = [one for one in found if not ipaddress.ip_address(one.address).is_loopback]
    return real or found[:1]


def check(machine: str, timeout_s: float, tested: list[Interface] | None = None) -> list[Finding]:
    """One finding per interface (blocking). ``value`` is seconds per MiB."""
    return [_one(machine, interface, timeout_s) for interface in (interfaces() if tested is None else tested)]


def _one(machine: str, interface: Interface, timeout_s: float) -> Finding:
    started = time.perf_counter()
    try:
        seconds, damaged = _transfer(interface.address, timeout_s)
    except OSError as error:
        why = f"{interface.name} ({interface.address}): {error}"
        return Finding(check="nic", machine=machine, ok=False, detail=why, kind=interface.name)
    mib = PAYLOAD_BYTES / 2**20
    detail = f"{interface.name}: {mib / seconds:.0f} MiB/s"
    return Finding(
        check="nic",
        machine=machine,
        ok=not damaged,
        sure=damaged,
        detail=f"{interface.name}: bytes arrived damaged" if damaged else detail,
        seconds=time.perf_counter() - started,
        value=seconds / mib,
        kind=interface.name,
    )


def _transfer(address: str, timeout_s: float) -> tuple[float, bool]:
    """Seconds that the payload took through ``address``, and whether it arrived damaged."""
    payload = bytes(range(256)) * (PAYLOAD_BYTES // 256)
    with socket.create_server((address, 0)) as server:
        server.settimeout(timeout_s)
        port = server.getsockname()[1]
        with socket.create_connection((address, port), timeout_s, source_address=(address, 0)) as sender:
            receiver, _ = server.accept()
            with receiver:
                receiver.settimeout(timeout_s)
                sending = threading.Thread(target=_send, args=(sender, payload), daemon=True)
                started = time.perf_counter()
                sending.start()
                left, checksum = len(payload), 0
                while left and (chunk := receiver.recv(min(_CHUNK, left))):
                    checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
                seconds = time.perf_counter() - started
                sending.join(timeout_s)
    if left:
        raise ConnectionError(f"{left} of {len(payload)} bytes did not arrive")
    return max(seconds, 1e-9), checksum != zlib.crc32(payload)


def _send(sender: socket.socket, payload: bytes) -> None:
    try:
        sender.sendall(payload)
    except OSError:
        return  # the receiver sees it
