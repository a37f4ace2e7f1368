"""The interface for gloo in ranks of several machines, where this host's name leads to the host itself alone.

Gloo listens at the address of the host's name, or at the loopback where there is none. Debian and Ubuntu give the name
127.0.1.1: no other machine reaches that. A job of NCCL alone has such groups too: the Session's votes, and a restore.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket

from holdfast.agent.diagnostics import meeting
from holdfast.models.agent import Start

_NAME_S = 2.0
"""Longest wait for the address of this host's name."""


async def of_ranks(start: Start) -> str:
    """Return the interface for ranks where job and site choose none, and gloo would find none of use by itself."""
    several = start.world_size > len(start.ranks) and not start.rendezvous.host.startswith("127.")
    if not several or meeting.INTERFACE in start.env or os.environ.get(meeting.INTERFACE):
        return ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_NAME_S):
            return await asyncio.to_thread(needed, start.rendezvous.host, start.rendezvous.port)
    return ""


@functools.lru_cache(maxsize=16)
def needed(host: str, port: int) -> str:
    """Return the interface that leads to ``host``; empty: gloo finds one that others reach, or none is known."""
    if not meeting.is_loopback(_own_address()):
        return ""
    found = meeting.interface_to(host, port)
    return "" if found.startswith("lo") else found


def _own_address() -> str:
    """Return the address that gloo takes by itself."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return "127.0.0.1"
