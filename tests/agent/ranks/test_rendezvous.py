"""The store where ranks meet, in a process of its own as the agent starts it."""

from __future__ import annotations

import multiprocessing
import re
import socket
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from holdfast.agent.ranks.rendezvous import serve
from tests.e2e.waiting import wait_for

_LISTENS = "0A"


def test_the_store_listens_on_the_machines_own_address_alone(tmp_path: Path) -> None:
    """Ranks reach it there; a stranger who comes by another address of the machine is refused by the kernel."""
    answer = tmp_path / "port"
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(str(answer), "127.0.0.1"))
    process.start()
    try:
        wait_for("an answer of the store", answer.exists)
        port = int(answer.read_text())
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=90))
        store.set("met", "here")
        assert store.get("met") == b"here"
        assert _listening(port) == {socket.inet_aton("127.0.0.1")[::-1].hex().upper()}
    finally:
        process.kill()
        process.join()


def _listening(port: int) -> set[str]:
    lines = [
        *Path("/proc/net/tcp").read_text().splitlines(),
        *Path("/proc/net/tcp6").read_text().splitlines(),
    ]
    rows = [re.split(r"\s+", line.strip()) for line in lines[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == _LISTENS and row[1].endswith(f":{port:04X}")}
