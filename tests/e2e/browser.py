"""Headless Chromium: what a page contains after it has loaded, and what it looks like."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
LOAD_MS = 20_000
"""Of the page's own clock, which stands still while requests are under way."""


class Chromium:
    """The installed browser, with a profile of its own."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        if found is None:
            pytest.skip("chromium is not installed (Debian and Ubuntu: apt-get install chromium)")
        self._command = [found, *FLAGS, f"--user-data-dir={folder / 'profile'}"]

    def look(self, url: str, screenshot: Path, size: tuple[int, int] = (1400, 1200)) -> str:
        """Load ``url``, save what it looks like, return its document."""
        page = subprocess.run(
            [
                *self._command,
                f"--window-size={size[0]},{size[1]}",
                f"--virtual-time-budget={LOAD_MS}",
                f"--screenshot={screenshot}",
                "--dump-dom",
                url,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return page.stdout


def shades(png: Path) -> tuple[int, int, int]:
    """Width and height of a screenshot, and how many different scan lines its middle third has; few: it is blank."""
    data, at, packed = png.read_bytes(), 8, b""
    width = height = channels = 0
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, _, colours = struct.unpack(">IIBB", body[:10])
            channels = {0: 1, 2: 3, 4: 2, 6: 4}[colours]
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride = zlib.decompress(packed), 1 + width * channels
    lines = {raw[row * stride : (row + 1) * stride] for row in range(height // 3, 2 * height // 3)}
    return width, height, len(lines)
