"""The CLI with several gateways, of which one leads."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from holdfast.cli.gateway import Gateway
from holdfast.errors import UnavailableError


def answer(request: httpx.Request) -> httpx.Response:
    if request.url.host == "away":
        raise httpx.ConnectError("refused")
    if request.url.host == "standby":
        return httpx.Response(503, json={"error": "UnavailableError", "message": "stands by"})
    return httpx.Response(200, json=[])


def test_the_one_that_leads_is_found_and_kept() -> None:
    """Those that are away or stand by are passed over."""
    with Gateway(
        "http://away,http://standby,http://leads", "s", Path("secret"), httpx.MockTransport(answer)
    ) as gateway:
        assert gateway.jobs() == []
        assert gateway.url == "http://leads"
        assert gateway.page == "http://leads/ui/"


def test_when_none_leads_that_is_said() -> None:
    """By the last one's words."""
    urls = "http://away,http://standby"
    with (
        Gateway(urls, "s", Path("secret"), httpx.MockTransport(answer)) as gateway,
        pytest.raises(UnavailableError, match="stands by"),
    ):
        gateway.jobs()
