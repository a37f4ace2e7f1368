"""A port stays the site's own while its service is started again."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.deployments.local import pidfile
from holdfast.deployments.local.held_port import HeldPort
from holdfast.deployments.local.services import Service
from holdfast.deployments.local.supervisor import Keeper
from holdfast.listen import takes_connections
from holdfast.paths import log_dir
from tests.e2e.waiting import free_ports

HOST = "127.0.0.1"
SERVES = """
from holdfast.listen import handed_over
listener, open = handed_over(16), []
while True:
    open.append(listener.accept()[0])
"""
SQUATS = """
import os, socket, sys
if os.getuid() == 0:
    os.setuid(65534)
squatter = socket.socket()
for option in map(int, sys.argv[2:]):
    squatter.setsockopt(socket.SOL_SOCKET, option, 1)
squatter.bind(("127.0.0.1", int(sys.argv[1])))
squatter.listen()
"""


def squatted(port: int) -> bool:
    """Return whether another user's program gets the port, in one way or another."""
    ways: list[tuple[int, ...]] = [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]
    tried = [
        subprocess.run(
            [sys.executable, "-c", SQUATS, str(port), *map(str, way)], capture_output=True, check=False
        )
        for way in ways
    ]
    return any(each.returncode == 0 for each in tried)


def test_no_process_takes_a_port_that_rests() -> None:
    """It is refused to clients meanwhile, and the next life listens again."""
    port = free_ports(1)
    held = HeldPort(HOST, port)
    try:
        for _ in range(2):
            assert not takes_connections(HOST, port, 1)
            assert not squatted(port)
            listener = socket.socket(fileno=os.dup(held.fileno()))
            listener.listen()
            assert takes_connections(HOST, port, 1)
            listener.close()  # its process ended, and the socket is still open here
            held.rest()
    finally:
        held.close()
    assert squatted(port)


def test_a_port_in_use_cannot_be_held() -> None:
    """The service reports it itself, in its own words."""
    with socket.create_server((HOST, 0)) as taken, pytest.raises(OSError, match="in use"):
        HeldPort(HOST, taken.getsockname()[1])


@pytest.mark.e2e
async def test_a_service_gets_its_port_back(tmp_path: Path) -> None:
    """Killed, it listens again in its next life; in between no other process could."""
    port = free_ports(1)
    log_dir(tmp_path).mkdir(parents=True)
    keeper = Keeper(Service("one", (sys.executable, "-c", SERVES), port=port, host=HOST), tmp_path)
    kept = asyncio.create_task(keeper.keep())
    lives = set()
    clients = []
    try:
        for _ in range(3):
            while not (process := pidfile.running(tmp_path, "one")) or process.pid in lives:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while not await asyncio.to_thread(takes_connections, HOST, port, 1):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            lives.add(process.pid)
            clients.append(socket.create_connection((HOST, port)))  # what it leaves behind is not in the way
            process.kill()
            assert not await asyncio.to_thread(squatted, port)
    finally:
        await keeper.stop()
        await kept
        for client in clients:
            client.close()
    assert await asyncio.to_thread(squatted, port)
