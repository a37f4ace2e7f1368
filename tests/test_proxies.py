"""Proxies of the environment are used for all addresses but loopback."""

from __future__ import annotations

import httpx
import pytest
from httpx._utils import get_environment_proxies

from holdfast import proxies
from holdfast.agent.client import AgentClient
from holdfast.agent.metrics import Metrics
from holdfast.agent.uplink.reporter import Reporter
from holdfast.errors import SettingsError


def test_without_a_proxy_nothing_is_set() -> None:
    assert proxies.exceptions({"NO_PROXY": "example.com"}) == {}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_loopback_is_added_to_what_was_there(name: str) -> None:
    found = proxies.exceptions(
        {name: "http://proxy:3128", "NO_PROXY": "corp.example, localhost", "no_proxy": "x"}
    )
    assert found["NO_PROXY"] == found["no_proxy"] == "corp.example,localhost,x,127.0.0.1,::1"


def test_clients_call_loopback_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As httpx understands it, which Prefect's client is."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    for name, value in proxies.exceptions({"HTTP_PROXY": "http://proxy:3128"}).items():
        monkeypatch.setenv(name, value)
    mounts = get_environment_proxies()
    assert mounts["http://"] == "http://proxy:3128"
    assert mounts["all://127.0.0.1"] is mounts["all://localhost"] is mounts["all://[::1]"] is None
    assert httpx.Client()._transport_for_url(httpx.URL("http://127.0.0.1:4300")) is not None


def test_agents_call_the_gateway_and_each_other_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever these are: a proxy would read the secret, and answer for an agent that is gone."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    url = httpx.URL("http://10.0.0.5:4300")
    usual = httpx.AsyncClient()
    assert usual._transport_for_url(url) is not usual._transport, "control: the proxy is there"
    for http in (Reporter(str(url), "s", Metrics())._http, AgentClient("10.0.0.5:4300", "s")._http):
        assert http._transport_for_url(url) is http._transport


@pytest.mark.parametrize(
    "url", ["http://proxy:3128", "proxy:3128", "socks5://proxy:1080", "socks5h://proxy:1080"]
)
def test_every_usual_proxy_is_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's client is made with them all, whatever it calls."""
    monkeypatch.setenv("ALL_PROXY", url)
    proxies.require_usable({"ALL_PROXY": url})
    httpx.Client().close()


@pytest.mark.parametrize("name", ["ALL_PROXY", "https_proxy"])
def test_a_proxy_that_no_client_can_use_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable; the address may hold a password."""
    url = "socks4://user:pass@proxy:1080"
    with pytest.raises(
        SettingsError, match=f"{name}: expected a proxy of kind http.* not 'socks4'"
    ) as raised:
        proxies.require_usable({name: url})
    assert "pass" not in str(raised.value)
    monkeypatch.setenv(name, url)
    with pytest.raises(ValueError, match="socks4"):
        httpx.Client()  # the control
