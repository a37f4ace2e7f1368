"""Headless Chromium, and what its screenshots show."""

from __future__ import annotations

import atexit
import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

import pytest

from tests.e2e.waiting import end, wait_for

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
DEADLINE_S = 60.0


class Chromium:
    """One headless Chromium for all tests of a process: it takes longer to start than most of them."""

    _started: Chromium | None = None

    @classmethod
    def running(cls) -> Chromium:
        """Return the one that runs, or start it; skips the test where Chromium is not installed."""
        if cls._started is None or cls._started._process.poll() is not None:
            cls._started = cls()
            atexit.register(cls._started.stop)
        return cls._started

    def __init__(self) -> None:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        if found is None:
            pytest.skip("chromium is not installed (Debian and Ubuntu: apt-get install chromium)")
        self._profile = tempfile.mkdtemp(prefix="holdfast-chromium-")
        command = [
            found,
            *FLAGS,
            f"--user-data-dir={self._profile}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
        announced = Path(self._profile) / "DevToolsActivePort"

        def announcement() -> list[str]:
            lines = announced.read_text().splitlines() if announced.exists() else []
            return lines if len(lines) == 2 else []

        port, path = wait_for("Chromium's port", announcement, DEADLINE_S, every_s=0.02)
        self.address = f"ws://127.0.0.1:{port}"
        self.control = f"{self.address}{path}"

    def stop(self) -> None:
        """End it, and remove its profile."""
        end(self._process)

        def gone() -> bool:
            """Whether nothing is left there: its child processes write until they notice its end."""
            shutil.rmtree(self._profile, ignore_errors=True)
            return not Path(self._profile).exists()

        wait_for("the end of Chromium's children", gone, DEADLINE_S, every_s=0.05)


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
