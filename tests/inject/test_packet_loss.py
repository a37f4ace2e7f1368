"""Packets of a machine are really lost, where machines have networks of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import psutil
import pytest

from holdfast.inject import packet_loss
from holdfast.inject.journal import Journal, Pen, Queue
from holdfast.inject.target import Target
from tests.network import lab
from tests.network.lab import Lab

SENT = 640
_SO_RCVBUFFORCE = 33
"""Of Linux: room for all of them, whatever the host's limit is; it takes the right that a lab takes."""
_SEND = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect((sys.argv[1], int(sys.argv[2])))
for line in sys.stdin:
    for _ in range(int(line)):
        sender.send(b"x")
    print("sent", flush=True)
"""


@pytest.fixture
def wires() -> Iterator[Lab]:
    if why := lab.missing():
        pytest.skip(why)
    built = Lab(["m0"])
    try:
        yield built.open()
    finally:
        built.close()


@pytest.mark.e2e
def test_what_a_machine_sends_is_lost_in_part_and_arrives_again_afterwards(
    wires: Lab, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's emulator or by number, about as much as was asked for; a queue that is not ours stays."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 22)
    receiver.bind((wires.control, 0))
    receiver.settimeout(3.0)  # a busy host may be late with the last ones
    command = ["nsenter", f"--net=/run/netns/{wires.namespace('m0')}", sys.executable, "-c", _SEND]
    where = [wires.control, str(receiver.getsockname()[1])]
    with subprocess.Popen(
        [*command, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None

        def arrived() -> int:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(f"{SENT}\n")
            agent.stdin.flush()
            agent.stdout.readline()
            count = 0
            with suppress(TimeoutError):
                while count < SENT:
                    receiver.recv(1)
                    count += 1
            return count

        assert arrived() == SENT
        monkeypatch.setattr(packet_loss, "agent_of", lambda _: psutil.Process(agent.pid))
        with Journal(tmp_path).holding("packet-loss", "m0") as pen:  # type: ignore[arg-type]
            device = packet_loss.strike(cast(Target, None), cast(Pen, pen), 13)
            assert device == "eth0"
            lost = SENT - arrived()
            assert SENT / 32 < lost < SENT / 3
        assert arrived() == SENT
        tc = ("nsenter", "--net", "--target", str(agent.pid), "tc")
        subprocess.run([*tc, "qdisc", "add", "dev", "eth0", "root", "handle", "7:", "pfifo"], check=True)
        Queue(tc=tc, device="eth0").undo()
        shown = subprocess.run(
            [*tc, "qdisc", "show", "dev", "eth0"], check=True, capture_output=True, text=True
        )
        assert "7: root" in shown.stdout
        agent.stdin.close()
        agent.wait(60)
    receiver.close()
