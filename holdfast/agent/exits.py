"""Why did a rank end? Turns exit status, last words and log into the evidence of an alert. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

LOG_TAIL_CHARS = 2000
TRACEBACK_CHARS = 4000

# What a rank says whose peer died: it is a victim, the cause is elsewhere. Texts of torch 2.13's gloo and NCCL
# back ends and of its store; matched against error type and message, or the log when the process aborted.
CASCADE = re.compile(
    "|".join(
        (
            r"Connection closed by peer",
            r"Connection reset by peer",
            r"Connection refused",
            r"Broken pipe",
            r"Application timeout caused pair closure",
            r"Timed out waiting \d+ms for (recv|send) operation",
            r"gloo.*(Read|Write) error",
            r"Gloo connectFullMesh failed",
            r"recvValueWithTimeout failed",
            r"(send|recv)Bytes failed",
            r"failed to recv, got 0 bytes",
            r"client socket has (failed|timed out)",
            r"Socket Timeout",
            r"wait timeout after \d+ms, keys",
            r"Dist(Backend|Network|Store)Error",
            r"ncclRemoteError",
            r"ncclSystemError",
            r"remote process exited or there was a network error",
            r"Watchdog caught collective operation timeout",
        )
    )
)

_LAST_LINE = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit|Warning)\w*)(?:: (.*))?$", re.MULTILINE
)
_START = "Traceback (most recent call last):"


def signal_name(exit_code: int | None) -> str | None:
    """``SIGKILL`` for -9; None when no signal ended the process."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def from_log(log: str) -> dict[str, str]:
    """Error type, message and traceback of the last Python traceback in ``log``; empty without one."""
    _, found, rest = log.rpartition(_START)
    if not found:
        return {}
    last = _LAST_LINE.search(rest)
    return {
        "error_type": last[1] if last else "",
        "message": (last[2] or "") if last else "",
        "traceback": found + rest,
    }


def is_cascade(exit_code: int | None, error_type: str, message: str, log: str) -> bool:
    """Whether the rank ended because a peer did."""
    if CASCADE.search(f"{error_type}: {message}"):
        return True
    return signal_name(exit_code) == "SIGABRT" and CASCADE.search(log) is not None


def evidence(exit_code: int | None, failed: Mapping[str, Any] | None, log: str) -> dict[str, Any]:
    """Evidence of a ``rank_exit`` alert.

    Args:
        exit_code: as ``multiprocessing`` gives it (negative: the signal); None when nobody saw it.
        failed: the rank's ``failed`` datagram, if it came.
        log: the end of its log.
    """
    said = failed or from_log(log)
    error_type, message = str(said.get("error_type") or ""), str(said.get("message") or "")
    return {
        "exit_code": exit_code,
        "signal": signal_name(exit_code),
        "error_type": error_type,
        "message": message[:1000],
        "traceback": str(said.get("traceback") or "")[-TRACEBACK_CHARS:],
        "user_frame": said.get("user_frame"),
        "cascade": is_cascade(exit_code, error_type, message, log),
        "log_tail": log[-LOG_TAIL_CHARS:],
    }
