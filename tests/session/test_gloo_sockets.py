"""Only the connections of Gloo's groups are shut down."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from holdfast.session.keep import gloo_sockets

pytestmark = pytest.mark.torch
RANKS = 2


def alone(body: Callable[[], None]) -> None:
    """Run a test's body in a process of its own: all groups of a process are shut down together."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(body).result(240)


def group(store: dist.Store, rank: int) -> dist.ProcessGroup:
    """A group of this process with itself: both ends of its connections are here."""
    gloo = dist.distributed_c10d.ProcessGroupGloo
    return gloo(store, rank, RANKS, timeout=timedelta(seconds=120))  # type: ignore[no-any-return]


def a_server_and_its_clients_stay() -> None:
    with selectors.EpollSelector() as queue, socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        served, _ = server.accept()
        with client, served:
            for each in (server, client, served):
                queue.register(each, selectors.EVENT_READ)
            assert gloo_sockets.shut_down() == 0
            client.sendall(b"hello")
            assert served.recv(5) == b"hello"


def one_that_waits_for_another_gets_an_error() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        store = dist.HashStore()
        with ThreadPoolExecutor(RANKS) as threads:
            groups = list(threads.map(lambda rank: group(store, rank), range(RANKS)))
    work = groups[0].recv([torch.zeros(1)], 1, 0)
    assert not work.is_completed()
    assert gloo_sockets.shut_down() > 0
    with pytest.raises(RuntimeError, match=r"losed by peer|reset"):
        work.wait(timedelta(seconds=120))


def test_a_server_and_its_clients_in_the_same_process_stay() -> None:
    """They are in an event queue, too, and so is a socket that listens."""
    alone(a_server_and_its_clients_stay)


def test_a_rank_that_waits_for_another_gets_an_error() -> None:
    alone(one_that_waits_for_another_gets_an_error)
