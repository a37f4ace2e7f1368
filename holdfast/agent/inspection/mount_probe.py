"""Asks a helper process about a mount, for a bounded time: a dead network file system blocks any process that looks.

A helper that does not answer is stuck in the kernel; not even SIGKILL ends it until the mount comes back. So each
path has a helper of its own, at most one at a time, and a path is asked again only when its helper has gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PATIENCE = 5
"""Multiple of the timeout that a helper may take which could run but did not answer."""
HELPER = Path(__file__).with_name("mount_helper.py")


class MountProbe:
    """One path and its helper."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._helper: subprocess.Popen[bytes] | None = None
        self._stuck_since: float | None = None

    @property
    def stuck_s(self) -> float:
        """For how long the helper has not answered; 0.0: it does."""
        return 0.0 if self._stuck_since is None else time.monotonic() - self._stuck_since

    def look(self) -> dict[str, Any] | None:
        """Return the helper's answer (see ``mount_helper.look``); None: no answer within the time."""
        if self._stuck_since is not None and not self._freed():
            return None
        began = time.monotonic()
        answer = self._ask()
        if answer is None:
            self._stuck_since = began
            if self._helper is not None:
                self._helper.kill()  # takes effect when the kernel lets go of it
        return answer

    def close(self) -> None:
        """End the helper, without waiting for one that cannot end."""
        if self._helper is not None:
            self._helper.kill()
            self._let_go()

    def _freed(self) -> bool:
        """Return whether the stuck helper has ended: the mount answers again, or it was only slow."""
        if self._helper is not None and self._helper.poll() is None:
            return False
        self._let_go()
        self._stuck_since = None
        return True

    def _let_go(self) -> None:
        if self._helper is not None:
            for pipe in (self._helper.stdin, self._helper.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._helper = None

    def _ask(self) -> dict[str, Any] | None:
        helper = self._running()
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            os.write(helper.stdin.fileno(), f"{self.path}\n".encode())
        except OSError:
            return None
        line = _line(helper.stdout.fileno(), time.monotonic() + self._timeout_s)
        if not line and _runs(helper.pid):
            # A host without processor time to spare is slow to answer too; that is not the mount's fault.
            line = _line(helper.stdout.fileno(), time.monotonic() + _PATIENCE * self._timeout_s)
        try:
            found = json.loads(line)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._helper is None or self._helper.poll() is not None:
            self._let_go()
            self._helper = subprocess.Popen(
                # Isolated and without site-packages: it starts in milliseconds and stays small.
                [sys.executable, "-I", "-S", "-B", str(HELPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        return self._helper


def _runs(pid: int) -> bool:
    """Return whether a process is neither stopped nor held by the kernel (state D), as one at a dead mount would be."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("R", "S")


def _line(descriptor: int, deadline: float) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        more = os.read(descriptor, 4096)
        if not more:
            return b""
        data += more
    return data
