"""Connections of Gloo's groups in this process, found and shut down: a rank that waits for a peer gets an error.

Gloo has no abort (torch 2.13: ``ProcessGroupGloo.abort`` does nothing), and a rank that waits in a collective returns
when the connection to the rank that it waits for is closed, on either side. A group cannot be released while it is in
use, so its sockets are shut down below it. They are known by the event queue (epoll) that Gloo's device keeps them in,
together with the socket that it listens at: Gloo registers a pointer for each, where Python and libuv, which the stores
use, register the descriptor's number.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

_EPOLL = "anon_inode:[eventpoll]"


@dataclass(frozen=True)
class _Registered:
    descriptor: int
    data: int
    inode: int


def shut_down() -> int:
    """Shut down the connections of all groups; return how many there were. From any thread, and as often as needed."""
    return sum(_shut_down_of(queue) for queue in _queues())


def _shut_down_of(queue: list[_Registered]) -> int:
    found = []
    listens = False
    try:
        for registered in queue:
            if registered.data != registered.descriptor and (opened := _opened(registered)) is not None:
                found.append(opened)
                listens = listens or bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        return sum(_shut(each) for each in found) if listens else 0
    finally:
        for each in found:
            each.close()


def _shut(connection: socket.socket) -> bool:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _queues() -> Iterator[list[_Registered]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == _EPOLL:
                with open(f"/proc/self/fdinfo/{name}", encoding="ascii") as file:
                    yield [_registered(line) for line in file if line.startswith("tfd:")]


def _registered(line: str) -> _Registered:
    """Read ``tfd: 43 events: 19 data: 56072d0e59b0  pos:0 ino:3f1 sdev:8`` (proc(5))."""
    words = line.replace(":", ": ").split()
    fields = dict(zip(words[::2], words[1::2], strict=False))
    return _Registered(int(fields["tfd:"]), int(fields["data:"], 16), int(fields["ino:"], 16))


def _opened(registered: _Registered) -> socket.socket | None:
    """Return the registered socket under a descriptor of its own; None: it is none of TCP, or is closed by now."""
    try:
        own = os.dup(registered.descriptor)
    except OSError:
        return None
    try:
        if os.fstat(own).st_ino == registered.inode:
            made = socket.socket(fileno=own)
            if made.family in (socket.AF_INET, socket.AF_INET6) and made.type == socket.SOCK_STREAM:
                return made
            made.detach()
    except OSError:
        pass
    os.close(own)
    return None
