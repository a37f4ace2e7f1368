"""Packets that a machine sends are lost on their way: a queue of its interface drops some."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import RefusedError, UnavailableError
from holdfast.inject.journal import HANDLE, Pen, Queue, need
from holdfast.inject.stop import agent_of
from holdfast.inject.target import Target

_WHY = "it takes root (CAP_NET_ADMIN) and iproute2's `tc`"
_DROPS = f"{HANDLE}1"
_ID_OFFSET = 4
"""Offset of a packet's identification number in its IPv4 header."""
_NUMBERED = ("protocol", "ip", "prio", "1", "u32", "match", "u16", "0x5")
_LOST = ("at", str(_ID_OFFSET), "flowid", _DROPS)


def strike(target: Target, pen: Pen, percent: float) -> str:
    """Lose a share of what the machine sends; returns the interface.

    With the kernel's network emulator where there is one; else every n-th packet of a connection, by its number.

    Raises:
        RefusedError: the machine shares its network with this host, so all would be hit.
        UnavailableError: the kernel or the tools are missing, or it is not allowed.
    """
    agent = agent_of(target)
    if os.readlink(f"/proc/{agent.pid}/ns/net") == os.readlink("/proc/self/ns/net") and _local(target):
        raise RefusedError(
            f"machine {target.machine} has no network of its own: all machines of this host use one loopback. Inject "
            "where machines are hosts, or have network namespaces"
        )
    device = _device(Path(f"/proc/{agent.pid}/net/route"))
    inside = ("nsenter", "--net", "--target", str(agent.pid))
    tc = (*inside, "tc")
    pen.note(Queue(tc=tc, device=device))
    try:
        need(
            (*tc, "qdisc", "add", "dev", device, "root", "handle", HANDLE, "netem", "loss", f"{percent:g}%"),
            _WHY,
        )
    except UnavailableError as error:
        if "qdisc kind is unknown" not in str(error):
            raise
        _by_number(tc, device, percent)
    return device


def _by_number(tc: tuple[str, ...], device: str, percent: float) -> None:
    one_in = next((n for n in (8, 16, 32, 64, 128) if 100 / n <= percent), 128)
    for words in (
        ("qdisc", "add", "dev", device, "root", "handle", HANDLE, "htb", "default", "0"),
        ("class", "add", "dev", device, "parent", HANDLE, "classid", _DROPS, "htb", "rate", "1mbit"),
        ("qdisc", "add", "dev", device, "parent", _DROPS, "pfifo", "limit", "0"),
        ("filter", "add", "dev", device, "parent", HANDLE, *_NUMBERED, hex(one_in - 1), *_LOST),
    ):
        need((*tc, *words), _WHY)


def _local(target: Target) -> bool:
    return target.settings.driver == "local"


def _device(routes: Path) -> str:
    """Return the interface of the first route that leaves the machine."""
    rows = [line.split() for line in routes.read_text().splitlines()[1:]]
    found = [row[0] for row in rows if row and row[0] != "lo"]
    if not found:
        raise RefusedError("the machine has no route to anywhere: there is no interface to lose packets on")
    return found[0]
