"""Requests to a Prefect server, as its own client makes them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.e2e.waiting import wait_for

BUSY = 503
"""Another writer holds the lock of Prefect's SQLite."""


class PrefectHttp(httpx.Client):
    """Asks again while Prefect's database is busy."""

    def request(self, method: str, url: httpx.URL | str, **more: Any) -> httpx.Response:
        """Send a request until it is taken; return the answer."""

        def answered() -> httpx.Response | None:
            answer = super(PrefectHttp, self).request(method, url, **more)
            return None if answer.status_code == BUSY else answer

        return wait_for(f"Prefect takes {method} {url}", answered)
