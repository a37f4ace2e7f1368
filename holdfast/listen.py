"""Listening sockets of our HTTP servers."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from urllib.parse import urlsplit

from holdfast.errors import SettingsError

KEEP_ALIVE_S = 90
"""Our servers keep an idle connection for so long. Longer than any of our clients do: were it the server that closes,
a request that is on its way in that moment would be reset."""
ENV_SOCKET = "HOLDFAST_LISTEN_FD"
"""Number of the bound socket that the supervisor hands over."""
CLIENT_KEEP_ALIVE_S = 70.0
"""An agent keeps its connection to the gateway: longer than between two heartbeats (60 s at most)."""


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Listen on ``host:port`` (port 0: a free one), with answers sent at once.

    asyncio turns Nagle's algorithm off only for sockets that it made itself. Left on, an answer in two writes
    (headers, body) waits for the other side's delayed acknowledgement: 40 ms for every request. Connections
    inherit the option from the socket that they were accepted on.

    Raises:
        OSError: the port is in use, or not ours to use.
    """
    listener = socket.create_server((host, port), family=family_of(host), backlog=backlog)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def handed_over(backlog: int) -> socket.socket | None:
    """Listen on the socket that the supervisor bound for this process; None: it was started without one."""
    descriptor = os.environ.pop(ENV_SOCKET, "")
    if not descriptor:
        return None
    listener = socket.socket(fileno=int(descriptor))
    listener.set_inheritable(False)
    try:
        listener.listen(backlog)
    except OSError:
        # To older kernels, connections that a former life left behind belong to root.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(backlog)
    # Connections inherit both: none of them is in the way of the next life.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def takes_connections(host: str, port: int, within_s: float) -> bool:
    """Return whether something listens at ``host:port``; a name that is not known counts as nothing."""
    try:
        socket.create_connection((host, port), within_s).close()
    except (OSError, UnicodeError):
        return False
    return True


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of the address ``host``; a name is one of IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def authority(host: str, port: int) -> str:
    """Return ``HOST:PORT`` as URLs have it: an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """Split what :func:`authority` returned.

    Raises:
        ValueError: it names no port.
    """
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this host reaches it; a name counts by all of its addresses, an unknown one does not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


def many_files() -> None:
    """Let this process open as many files as its user may: a thousand agents keep a connection each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def facing(url: str) -> str:
    """Return this host's address on the way to ``url``; nothing is sent.

    Raises:
        SettingsError: its host is unknown here, or there is no way to it.
    """
    known = urlsplit(url)
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            known.hostname, known.port or 80, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as asked:
            asked.connect(address)
            return str(asked.getsockname()[0])
    except OSError as error:
        raise SettingsError(f"no way from this host to the gateway at {url}: {error}") from None
