"""A cloud's metadata service, asked over HTTP: each answer is whole within a time and a size, or there is none."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

TIMEOUT_S = 2.0
"""For a whole answer: a timeout of HTTP clients counts from each of its bytes."""
LONGEST = 1 << 20
"""Bytes of an answer."""


class MetadataService:
    """One service. It is asked from a thread without an event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._tls = ssl.create_default_context()

    def get(
        self, path: str, headers: Mapping[str, str], params: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Return the answer.

        Raises:
            ValueError: it is too long.
            httpx.HTTPError: there is none in time.
        """
        return asyncio.run(self._ask("GET", path, headers, params))

    def put(self, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """Return the answer, as :meth:`get` does."""
        return asyncio.run(self._ask("PUT", path, headers, None))

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str], params: Mapping[str, str] | None
    ) -> httpx.Response:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._whole(method, path, headers, params)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer within {TIMEOUT_S:.0f} s") from None

    async def _whole(
        self, method: str, path: str, headers: Mapping[str, str], params: Mapping[str, str] | None
    ) -> httpx.Response:
        # Never through a proxy: it would be asked about itself.
        client = httpx.AsyncClient(base_url=self._address, timeout=None, trust_env=False, verify=self._tls)
        async with client, client.stream(method, path, headers=headers, params=params) as answer:
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > LONGEST:
                    raise ValueError(f"an answer of more than {LONGEST} bytes")
            return httpx.Response(
                answer.status_code, headers=answer.headers, content=bytes(body), request=answer.request
            )
