"""The meeting of a check's processes: the interface by which they reach each other, and the store of one attempt.

Two machines meet in a store that one of them serves. Torch is imported inside the functions, as in
:mod:`holdfast.agent.diagnostics.check_process`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from holdfast.agent.diagnostics.check_part import CheckPart

_POLL_S = 0.005
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Gloo's variable for the interface by which it is reached."""
_GIVEN = os.environ.get(INTERFACE, "")
"""The site's own choice, as it was before any check."""


def bind(part: CheckPart) -> None:
    """Have gloo use the interface that leads to the other machine, or the loopback; what job or site chose stays.

    Each time: a process may have had another check before. By itself gloo takes the address of the host's name, which
    may be slow, absent, or one that no other machine reaches.
    """
    if _GIVEN or INTERFACE in part.env:
        return
    local = not part.port or is_loopback(part.host)
    if name := "lo" if local else interface_to(part.host, part.port):
        os.environ[INTERFACE] = name
    else:
        os.environ.pop(INTERFACE, None)


def interface_to(host: str, port: int) -> str:
    """Return the interface of this machine by which ``host`` is reached, itself included; empty: not known."""
    import psutil  # noqa: PLC0415

    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError:
        return ""
    of_all = psutil.net_if_addrs().items()
    return next((name for name, known in of_all if any(each.address == own for each in known)), "")


def met(part: CheckPart, offer: Mapping[str, object]) -> tuple[Store, Mapping[str, Any]]:
    """Return the store of this attempt, and the other machine's offer; empty: it makes none."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    limit = timedelta(seconds=part.timeout_s)
    store = TCPStore(part.host, part.port, is_master=False, timeout=limit)
    name, theirs = _meet(store, part, json.dumps(offer))
    return PrefixStore(f"{part.prefix}/{name}", store), json.loads(theirs or "{}")


def of_turn(store: Store, turn: int) -> Store:
    """Return the store of a turn; that of the first is the one of agents of earlier releases."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # noqa: PLC0415

    return PrefixStore(f"gpu{turn}", store) if turn else store


def _meet(store: Store, part: CheckPart, offer: str) -> tuple[str, str | None]:
    """Agree with the other machine on a name for this attempt; return it, and what the other offers.

    A check that is repeated on a store that is still there would read the addresses of the attempt before.
    Rank 1 announces itself, rank 0 answers each one that it hears of, and waits for the one that took its answer.
    """
    deadline = time.monotonic() + part.timeout_s
    me, base = uuid.uuid4().hex, f"{part.prefix}/meet"

    def get(key: str) -> str | None:
        return store.get(f"{base}/{key}").decode() if store.check([f"{base}/{key}"]) else None

    def wait() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the peer did not come to {part.host}:{part.port} in {part.timeout_s:g} s")
        time.sleep(_POLL_S)

    store.set(f"{base}/offer-{me}", offer)
    if part.rank:
        store.set(f"{base}/hello", me)
        while (answer := get(f"answer-{me}")) is None:
            wait()
        store.set(f"{base}/taken-{answer}", me)
        return f"{answer}-{me}", get(f"offer-{answer}")
    while (taken := get(f"taken-{me}")) is None:
        if (hello := get("hello")) is not None:
            store.set(f"{base}/answer-{hello}", me)
        wait()
    return f"{me}-{taken}", get(f"offer-{taken}")


def is_loopback(host: str) -> bool:
    """Return whether an address is of this host alone; a name is looked up nowhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
