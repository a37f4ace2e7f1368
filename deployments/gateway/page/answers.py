"""Answers that many browsers poll: made once for all of them, and sent only when they changed."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response

FRESH_S = 1.0
"""An answer is at least so long good enough for the next browser."""
SHARE = 10.0
"""And for so many times as long as it took to make: views of long histories cost a tenth of a core at most."""
KEPT = 64
GZIP_FROM_BYTES = 4096


@dataclass(frozen=True)
class PageAnswer:
    """One view as JSON."""

    body: bytes
    packed: bytes | None
    """The same, gzipped; None: too small to be worth it."""
    etag: str
    until: float
    """Monotonic time until which it is fresh ..."""
    acts: int
    """... unless a person acted by hand since: they wait to see the result."""


@dataclass
class Answers:
    """The newest answer of each view."""

    fresh_s: float = FRESH_S
    acts: Callable[[], int] = lambda: 0
    """Returns the number of acts by hand so far."""
    _made: OrderedDict[str, PageAnswer] = field(default_factory=OrderedDict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def give(
        self, request: Request, key: str, make: Callable[[], Mapping[str, Any]], now: float
    ) -> Response:
        """Return the view called ``key``: 304 when the browser has it, else all of it; ``now`` goes into a header."""
        async with self._locks[key]:
            answer = self._made.get(key)
            if answer is None or answer.until < time.monotonic() or answer.acts != self.acts():
                try:
                    answer = await asyncio.to_thread(self._make, make)
                except BaseException:
                    self._locks.pop(key, None)
                    raise
                self._keep(key, answer)
        headers = {
            "ETag": answer.etag,
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
            "X-Holdfast-Now": f"{now:.3f}",
        }
        if request.headers.get("if-none-match") == answer.etag:
            return Response(status_code=304, headers=headers)
        if answer.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(answer.packed, headers=headers, media_type="application/json")
        return Response(answer.body, headers=headers, media_type="application/json")

    def _make(self, make: Callable[[], Mapping[str, Any]]) -> PageAnswer:
        begun, acts = time.monotonic(), self.acts()
        body = json.dumps(make(), separators=(",", ":"), allow_nan=False).encode()
        packed = gzip.compress(body, 1) if len(body) >= GZIP_FROM_BYTES else None
        took = time.monotonic() - begun
        etag = f'W/"{hashlib.sha256(body).hexdigest()[:24]}"'
        return PageAnswer(body, packed, etag, begun + took + max(self.fresh_s, SHARE * took), acts)

    def _keep(self, key: str, answer: PageAnswer) -> None:
        self._made[key] = answer
        self._made.move_to_end(key)
        while len(self._made) > KEPT:
            old, _ = self._made.popitem(last=False)
            if not self._locks[old].locked():
                self._locks.pop(old, None)
