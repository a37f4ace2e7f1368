"""Listening sockets."""

import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from holdfast import secret
from holdfast.deployments.local import control
from holdfast.errors import SettingsError
from holdfast.listen import (
    CLIENT_KEEP_ALIVE_S,
    KEEP_ALIVE_S,
    authority,
    host_and_port,
    is_loopback,
    listen,
)
from holdfast.settings import Settings
from holdfast.tls import require_tls


def test_accepted_connections_send_at_once() -> None:
    with listen("127.0.0.1", 0, 4) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert client


def test_addresses_of_ipv6_stand_in_brackets(tmp_path: Path) -> None:
    """In URLs and in the addresses of agents, which are split again."""
    assert authority("::1", 80) == "[::1]:80"
    assert authority("10.0.0.7", 80) == "10.0.0.7:80"
    for host in ("::1", "10.0.0.7", "n7.cluster"):
        assert host_and_port(authority(host, 80)) == (host, 80)
    with pytest.raises(ValueError, match="invalid literal"):
        host_and_port("n7")
    settings = Settings(home=tmp_path, host="[::1]", port=4300)
    assert (settings.host, settings.gateway) == ("::1", "http://[::1]:4300")
    assert settings.s3 == "http://[::1]:4302"
    assert Settings(home=tmp_path, host="::", port=4300).gateway == "http://[::1]:4300"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this host has no IPv6")
def test_an_address_of_ipv6_is_listened_on() -> None:
    try:
        listener = listen("::1", 0, 4)
    except OSError as error:
        pytest.skip(f"::1: {error}")
    with listener, socket.create_connection(("::1", listener.getsockname()[1])) as client:
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


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.5", False),
        ("192.0.2.1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_loopback_is_what_only_this_host_reaches(host: str, loopback: bool) -> None:
    """Everything else counts as a network, an unknown name too."""
    assert is_loopback(host) is loopback
    settings = Settings()
    if loopback:
        require_tls(settings, host, "HOLDFAST_HOST")
    else:
        with pytest.raises(SettingsError, match=f"HOLDFAST_HOST = {host}.*HOLDFAST_ALLOW_PLAINTEXT=true"):
            require_tls(settings, host, "HOLDFAST_HOST")


def test_a_network_is_served_by_tls_or_where_the_site_says_so() -> None:
    """Either is enough."""
    require_tls(Settings(allow_plaintext=True), "0.0.0.0", "HOLDFAST_HOST")
    require_tls(Settings(tls_cert=Path("tls.crt")), "0.0.0.0", "HOLDFAST_HOST")


def test_up_refuses_before_anything_is_made(tmp_path: Path) -> None:
    """Gateway and Prefect would be open to the network."""
    with pytest.raises(SettingsError, match=r"HOLDFAST_HOST = 0\.0\.0\.0 is an address of a network"):
        control.up(Settings(home=tmp_path / "home", host="0.0.0.0"), 0, lambda _: None)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "arguments",
    [("gateway", "deployments.gateway"), ("agent", "agent", "--machine", "m0", "--host", "0.0.0.0")],
)
def test_gateway_and_agent_refuse_by_themselves(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """However they are started; in a sentence, not a traceback."""
    secret.create(tmp_path / "secret")
    (tmp_path / "settings.env").write_text(
        "HOLDFAST_HOST=0.0.0.0\nHOLDFAST_PREFECT_API_URL=http://127.0.0.1:1/api\n"
    )
    _, module, *more = arguments
    command = [sys.executable, "-P", "-m", f"holdfast.{module}", *more, "--home", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "HOLDFAST_ALLOW_PLAINTEXT=true" in ended.stderr
    assert "Traceback" not in ended.stderr
