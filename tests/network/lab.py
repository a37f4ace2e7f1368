"""Hosts as network namespaces on one bridge, and faults of the network between them.

Each host has an address of its own and one cable to a switch (a bridge in a namespace of its own); the control plane
is this host, on the same switch. Packets are lost in the switch, on their way to a host, so neither side gets an error.
Needs iproute2 and root; only queues that every kernel has (htb, fifo, u32) are used.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

CONTROL = "gw"
"""The control plane's side: this host."""
FLAP_S = 0.05
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_PREFIX = "hf"
_numbers = itertools.count()
_HTB, _DROPS, _SLOW = "1:", "1:1", "1:2"
_ID_OFFSET, _SPARED = 4, 5
# An answer to a first packet always has 0 in the field.


class Lab:
    """A switch, ``hosts`` on it, and this host; everything is gone after :meth:`close`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        sweep()
        self.hosts = tuple(hosts)
        # The kernel takes its time to remove a namespace: no name is used twice.
        self._prefix = f"{_PREFIX}{os.getpid()}x{next(_numbers)}"
        self._switch = f"{self._prefix}-net"
        self._subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._rules: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    @property
    def control(self) -> str:
        """Address of the control plane."""
        return f"{self._subnet}.1"

    def address(self, host: str) -> str:
        """Address of a host."""
        return self.control if host == CONTROL else f"{self._subnet}.{10 + self.hosts.index(host)}"

    def namespace(self, host: str) -> str:
        """Name of a host's namespace."""
        return f"{self._prefix}-{host}"

    def open(self) -> Lab:
        """Build it."""
        _run("ip", "netns", "add", self._switch)
        self._in_switch("ip", "link", "add", "name", "lan", "type", "bridge")
        self._in_switch("ip", "link", "set", "lan", "up")
        self._cable(CONTROL, self._prefix)
        _run("ip", "addr", "add", f"{self.control}/24", "dev", self._prefix)
        _run("ip", "link", "set", self._prefix, "up")
        for host in self.hosts:
            space = self.namespace(host)
            _run("ip", "netns", "add", space)
            self._cable(host, "eth0", space)
            for command in (
                ("addr", "add", f"{self.address(host)}/24", "dev", "eth0"),
                ("link", "set", "lo", "up"),
            ):
                _run("ip", "-n", space, *command)
            _run("ip", "-n", space, "link", "set", "eth0", "up")
        return self

    def close(self) -> None:
        """Take it down, with all processes on it."""
        for space in map(self.namespace, self.hosts):
            _remove(space)
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self._prefix)
        _remove(self._switch)

    # Faults

    def cut(self, one: str, other: str) -> None:
        """No packet passes between two hosts any more, in either direction."""
        for source, target in ((one, other), (other, one)):
            self._rule(source, target, _match_source(self.address(source)), _DROPS)

    def heal(self, one: str, other: str) -> None:
        """Take back what :meth:`cut` or :meth:`lose` did between two hosts."""
        self._unrule(one, other)
        self._unrule(other, one)

    def cut_from_all(self, host: str, but: Sequence[str] = ()) -> None:
        """Cut a host from all others, ``but`` some."""
        for other in self._others(host, but):
            self.cut(host, other)

    def heal_all(self, host: str) -> None:
        """Take back every cut and loss between a host and the others, and all that slows it down."""
        for other in self._others(host):
            self.heal(host, other)
        self._slow_down(host, 0)

    def lose(self, host: str, one_in: int = 16) -> None:
        """Every ``one_in``-th packet (a power of two) of each connection of a host is lost, in both directions."""
        assert one_in >= 8
        assert one_in & (one_in - 1) == 0, one_in
        for other in self._others(host):
            for source, target in ((host, other), (other, host)):
                match = ["match", "u16", hex(_SPARED), hex(one_in - 1), "at", str(_ID_OFFSET)]
                self._rule(source, target, [*_match_source(self.address(source)), *match], _DROPS)

    def slow(self, host: str, kbit: int) -> None:
        """Limit a host's traffic, both ways, to ``kbit`` per second; a full queue loses packets."""
        self._slow_down(host, kbit)

    def unplug(self, host: str) -> None:
        """The cable between host and switch."""
        self._in_switch("ip", "link", "set", _port(host), "down")

    def plug(self, host: str) -> None:
        """And back."""
        self._in_switch("ip", "link", "set", _port(host), "up")

    @contextmanager
    def flapping(self, host: str, down_s: float, up_s: float) -> Iterator[Callable[[], int]]:
        """The host's cable loses contact again and again; yields the number of times so far."""
        over, times = threading.Event(), [0]

        def flap() -> None:
            while not over.is_set():
                self.unplug(host)
                times[0] += 1
                over.wait(down_s)
                self.plug(host)
                over.wait(up_s)

        flapping = threading.Thread(target=flap, daemon=True)
        flapping.start()
        try:
            yield lambda: times[0]
        finally:
            over.set()
            flapping.join()
            self.plug(host)

    def _others(self, host: str, but: Sequence[str] = ()) -> list[str]:
        return [other for other in (CONTROL, *self.hosts) if other != host and other not in but]

    def _cable(self, host: str, end: str, space: str = "") -> None:
        port = _port(host)
        into = ["netns", space] if space else ["netns", str(os.getpid())]
        self._in_switch("ip", "link", "add", port, "type", "veth", "peer", "name", end, *into)
        self._in_switch("ip", "link", "set", port, "master", "lan", "up")
        for command in (
            ("qdisc", "add", "dev", port, "root", "handle", _HTB, "htb", "default", "0"),
            ("class", "add", "dev", port, "parent", _HTB, "classid", _DROPS, "htb", "rate", "1mbit"),
            ("qdisc", "add", "dev", port, "parent", _DROPS, "pfifo", "limit", "0"),
        ):
            self._in_switch("tc", *command)

    def _rule(self, source: str, target: str, match: Sequence[str], into: str) -> None:
        """Packets from ``source`` to ``target`` that match go into a class."""
        self._unrule(source, target)
        with self._lock:
            number = 1 + next(n for n in range(1000) if n + 1 not in self._rules.values())
            self._rules[source, target] = number
        where = ["dev", _port(target), "parent", _HTB, "protocol", "ip", "prio", str(number)]
        self._in_switch("tc", "filter", "add", *where, "u32", *match, "flowid", into)

    def _unrule(self, source: str, target: str) -> None:
        """Take back the rule for packets from ``source`` to ``target``, if there is one."""
        with self._lock:
            number = self._rules.pop((source, target), None)
        if number is not None:
            where = ["dev", _port(target), "parent", _HTB, "protocol", "ip", "prio", str(number)]
            self._in_switch("tc", "filter", "del", *where)

    def _slow_down(self, host: str, kbit: int) -> None:
        """At the host's own end for what it sends, at the switch's for what it receives; 0: as fast as it goes."""
        space, port = self.namespace(host), _port(host)
        with suppress(subprocess.CalledProcessError):
            _run("tc", "-n", space, "qdisc", "del", "dev", "eth0", "root")
        slow = ["dev", port, "parent", _HTB, "protocol", "ip", "prio", "2000"]
        with suppress(subprocess.CalledProcessError):
            self._in_switch("tc", "filter", "del", *slow)
            self._in_switch("tc", "class", "del", "dev", port, "classid", _SLOW)
        if not kbit:
            return
        rate = ["rate", f"{kbit}kbit"]
        _run(
            *("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "tbf"),
            *(*rate, "burst", "32kb", "latency", "200ms"),
        )
        self._in_switch("tc", "class", "add", "dev", port, "parent", _HTB, "classid", _SLOW, "htb", *rate)
        self._in_switch("tc", "qdisc", "add", "dev", port, "parent", _SLOW, "pfifo", "limit", "50")
        self._in_switch("tc", "filter", "add", *slow, "u32", "match", "u32", "0", "0", "flowid", _SLOW)

    def _in_switch(self, program: str, *words: str) -> None:
        _run(program, "-n", self._switch, *words)


def missing() -> str:
    """Why there can be no lab on this host; empty: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "tc", "nsenter") if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install iproute2 util-linux"
    lab = Lab(["probe"])
    try:
        lab.open().cut("probe", CONTROL)
        lab.slow("probe", 1000)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"the kernel forbids it: {_last_line(error)}"
    finally:
        lab.close()
    return ""


def sweep() -> None:
    """Remove what test runs left behind that were killed."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        found = re.fullmatch(rf"{_PREFIX}(\d+)x\d+-\w+", name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            _remove(name)


def _remove(space: str) -> None:
    with suppress(subprocess.CalledProcessError):
        for pid in _run("ip", "netns", "pids", space).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while _run("ip", "netns", "pids", space).split() and time.monotonic() < deadline:
            time.sleep(FLAP_S)
        _run("ip", "netns", "del", space)


def _match_source(address: str) -> list[str]:
    return ["match", "ip", "src", f"{address}/32"]


def _port(host: str) -> str:
    return f"p-{host}"


def _last_line(error: Exception) -> str:
    text = getattr(error, "stderr", "") or str(error)
    return text.strip().splitlines()[-1] if text.strip() else str(error)


def _run(*command: str) -> str:
    env = {**os.environ, "PATH": _PATH}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True).stdout
