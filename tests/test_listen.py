"""Listening sockets."""

import socket

import httpx
import pytest

from holdfast.listen import CLIENT_KEEP_ALIVE_S, KEEP_ALIVE_S, listen
from holdfast.settings import Settings


def test_accepted_connections_send_at_once() -> None:
    with listen("127.0.0.1", 0, 4) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert client


def test_port_in_use_is_an_os_error() -> None:
    with listen("127.0.0.1", 0, 4) as listener, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", listener.getsockname()[1], 4)


def test_clients_close_idle_connections_first() -> None:
    """A server that closes one in the moment in which a request is sent resets it. Heartbeats share one connection."""
    (most,) = [
        limit.le for limit in Settings.model_fields["heartbeat_s"].metadata if getattr(limit, "le", None)
    ]
    assert most < CLIENT_KEEP_ALIVE_S < KEEP_ALIVE_S
    assert (httpx.Limits().keepalive_expiry or 0) < KEEP_ALIVE_S
