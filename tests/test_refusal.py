"""Distinguish a refusal from silence, through all that HTTP libraries wrap around it."""

from __future__ import annotations

import errno
import os

import httpx
import pytest

from holdfast.refusal import is_silence, reason_of
from tests.e2e.waiting import free_ports


def wrapped(error: OSError) -> httpx.ConnectError:
    """As httpx over anyio raises it."""
    try:
        try:
            raise OSError("All connection attempts failed") from ExceptionGroup("several", [error])
        except OSError as cause:
            raise httpx.ConnectError("All connection attempts failed") from cause
    except httpx.ConnectError as outer:
        return outer


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT])
def test_no_way_to_the_host_is_silence(number: int) -> None:
    """Nothing is known of what runs there."""
    error = wrapped(OSError(number, "x"))
    assert is_silence(error)
    assert reason_of(error) in ("no route to host", "network is unreachable", "connection timed out")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_what_this_side_lacks_is_silence(number: int) -> None:
    """A caller of a thousand agents that may open no more files knows nothing of them: none is taken for dead."""
    error = wrapped(OSError(number, "x"))
    assert is_silence(error)
    assert reason_of(error) == os.strerror(number).lower()


def test_a_refused_connection_is_none() -> None:
    """A real one: the host lives and no process listens."""
    with pytest.raises(httpx.ConnectError) as caught:
        httpx.get(f"http://127.0.0.1:{free_ports()}", trust_env=False)
    assert not is_silence(caught.value)
    assert not is_silence(wrapped(ConnectionRefusedError(errno.ECONNREFUSED, "refused")))
    assert not is_silence(httpx.ConnectError("certificate verify failed"))


def test_a_timeout_of_the_kernel_is_silence() -> None:
    """Whatever it is wrapped in."""
    assert is_silence(wrapped(TimeoutError(errno.ETIMEDOUT, "timed out")))
    assert is_silence(wrapped(TimeoutError("timed out")))
