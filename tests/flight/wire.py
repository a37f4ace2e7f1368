"""A loopback of this process's own, on which one connection can be cut in one direction. Needs root and iproute2."""

from __future__ import annotations

import ctypes
import os
import subprocess

import psutil

_NEW_NETWORK = 0x40000000


def isolate() -> None:
    """Leave this host's network for one with nothing but a loopback; what is forked afterwards is in it too.

    Raises:
        OSError: the kernel forbids it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _run("ip", "link", "set", "lo", "up")
    _run("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "0")
    _run("tc", "class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", "rate", "1mbit")
    _run("tc", "qdisc", "add", "dev", "lo", "parent", "1:1", "pfifo", "limit", "0")


def cut(source: int, target: int) -> None:
    """Drop every packet that process ``source`` sends to ``target`` from now on, on the connections that they have."""
    ends = {(each.laddr, each.raddr) for each in psutil.Process(target).net_connections("tcp4")}
    found = [
        each
        for each in psutil.Process(source).net_connections("tcp4")
        if each.raddr and (each.raddr, each.laddr) in ends
    ]
    assert found, f"processes {source} and {target} have no connection"
    for each in found:
        match = []
        for end, port in (("sport", each.laddr.port), ("dport", each.raddr.port)):
            match += ["match", "ip", end, str(port), "0xffff"]
        where = ["dev", "lo", "parent", "1:", "protocol", "ip", "prio", "1"]
        _run("tc", "filter", "add", *where, "u32", *match, "flowid", "1:1")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
