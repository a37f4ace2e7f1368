"""Calls to a site's Prefect API."""

from __future__ import annotations

import httpx

from holdfast import secret, tls
from holdfast.settings import Settings


def client(settings: Settings) -> httpx.Client:
    """With the credentials that the embedded server asks for; for a single call: connections are not kept."""
    user, _, password = secret.prefect_auth(settings).partition(":")
    return httpx.Client(
        base_url=settings.prefect_api, auth=(user, password), timeout=60.0, **tls.of(settings).http()
    )
