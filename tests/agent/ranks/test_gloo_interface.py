"""Ranks of several machines get an interface for gloo where their host's name is an address of the host alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.agent.diagnostics import meeting
from holdfast.agent.ranks import gloo_interface


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing is known of an earlier test."""
    gloo_interface.needed.cache_clear()
    yield
    gloo_interface.needed.cache_clear()


@pytest.mark.parametrize(
    ("own", "leads", "expected"),
    [
        ("127.0.1.1", "eth7", "eth7"),
        ("::1", "eth7", "eth7"),
        ("10.0.0.7", "eth7", ""),
        ("fe80::1%eth0", "eth7", ""),
        ("127.0.1.1", "lo", ""),
        ("127.0.1.1", "", ""),
    ],
)
def test_only_a_name_that_others_cannot_use(
    own: str, leads: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with an address that others reach may be that of a faster network: it stays gloo's choice."""
    monkeypatch.setattr(gloo_interface, "_own_address", lambda: own)
    monkeypatch.setattr(meeting, "interface_to", lambda host, port: leads)
    assert gloo_interface.needed("10.0.0.1", 29500) == expected


def test_a_host_whose_name_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo takes the loopback then."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(meeting, "interface_to", lambda host, port: "eth7")
    assert gloo_interface.needed("10.0.0.1", 29500) == "eth7"
