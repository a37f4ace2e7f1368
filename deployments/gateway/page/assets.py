"""The page's files, read once: plain HTML, CSS and ES modules, and the vendored chart library."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}

SECURITY = {
    # Scripts and styles of this host only, no inline ones; texts never become markup (Trusted Types).
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Asset(NamedTuple):
    """One file."""

    body: bytes
    media_type: str
    etag: str


def load(folder: Path = STATIC) -> dict[str, Asset]:
    """Return every file below ``folder`` by its path there: what is not in it cannot be asked for."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            body = path.read_bytes()
            kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
            etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
            found[path.relative_to(folder).as_posix()] = Asset(body, kind, etag)
    return found
