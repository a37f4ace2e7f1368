"""Ranks that report saves to each other, forked from one process: ``sockets.py WORLD EXCHANGES [EARLIER]``.

``EARLIER`` of them do not know that votes may go to the first rank. Each prints the sockets that it has for that, and
how many calls were common.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (a world without sockets of its own)

from holdfast.session import agreement
from holdfast.session.agreement import Group, Vote

WORLD, EXCHANGES = int(sys.argv[1]), int(sys.argv[2])
EARLIER = int(sys.argv[3]) if len(sys.argv) > 3 else 0
DIGITS = 5
"""Of a port, as the rank with the store sends it to each of the others."""


def sockets() -> int:
    return sum(_is_socket(each) for each in Path("/proc/self/fd").iterdir())


def _is_socket(descriptor: Path) -> bool:
    try:
        return os.readlink(descriptor).startswith("socket:")
    except FileNotFoundError:  # the listing's own, or one that a thread of torch has closed since
        return False


def rank_main(rank: int, ports: tuple[int, int]) -> None:
    torch.set_num_threads(1)
    port = int(os.read(ports[0], DIGITS)) if rank else 0
    store = dist.TCPStore(
        "127.0.0.1", port, WORLD, rank == 0, timeout=timedelta(seconds=300), wait_for_workers=False
    )
    if not rank:
        os.write(ports[1], f"{store.port:{DIGITS}}".encode() * (WORLD - 1))
    dist.init_process_group("fake", store=store, rank=rank, world_size=WORLD)
    store.add("here", 1)
    store.wait(["here"])
    while store.add("here", 0) < WORLD:
        time.sleep(0.01)
    if rank < EARLIER:
        agreement._BY_FIRST = "not counted"
    before, group = sockets(), Group()
    group.open()
    assert group.agree(rank == WORLD - 1, equal="plan") == ([True], True)
    common = 0
    for number in range(EXCHANGES):
        missing = number % 3 == 2 and rank == number % WORLD
        vote = Vote(number, step=number, plan="plan", saved=not missing, copied=True)
        common += group.exchange(vote, ended=lambda _: False).common
    result = {"rank": rank, "sockets": sockets() - before, "common": common, "by_first": group.by_first}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    store.add("told", 1)
    while rank == 0 and store.add("told", 0) < WORLD:
        time.sleep(0.01)
    os._exit(0)


def main() -> None:
    ports, pids = os.pipe(), set[int]()
    for rank in range(WORLD):
        if (pid := os.fork()) == 0:
            try:
                rank_main(rank, ports)
            finally:  # a rank that raised must not go on as the parent does
                traceback.print_exc()
                os._exit(1)
        pids.add(pid)
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        if status:  # the others would wait for it
            for each in pids:
                os.kill(each, signal.SIGKILL)
            sys.exit(f"a rank ended with status {status}")


main()
