"""The interface for gloo in ranks of several machines, where this host's name leads to the host itself alone.

Gloo listens at the address of the host's name, or at the loopback where there is none. Debian and Ubuntu give the name
127.0.1.1: no other machine reaches that. A job of NCCL alone has such groups too: the Session's votes, and a restore.
"""

from __future__ import annotations

import functools
import ipaddress
import socket

from holdfast.agent.diagnostics import meeting


@functools.lru_cache(maxsize=16)
def needed(host: str, port: int) -> str:
    """Return the interface that leads to ``host``; empty: gloo finds one that others reach, or none is known."""
    if not _is_loopback(_own_address()):
        return ""
    found = meeting.interface_to(host, port)
    return "" if found.startswith("lo") else found


def _own_address() -> str:
    """Return the address that gloo takes by itself."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return "127.0.0.1"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
