"""Why did a rank end? Turns exit status, last words and log into the evidence of an alert. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from holdfast.policies import unloadable
from holdfast.policies.patterns import RANK_LOG_FILE, Match, registry

LOG_TAIL_CHARS = 2000
TRACEBACK_CHARS = 4000

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


def reason(exit_code: int | None, error_type: str, message: str, log: str) -> Match | None:
    """The known pattern that says why the rank ended: in its last words, else in the log.

    In a log, a cause outweighs the lost peer that follows from it, and the first cause those that follow.
    """
    words = f"{error_type}: {message}"
    patterns = registry(RANK_LOG_FILE)
    if (said := patterns.match(words.replace("\n", " "))) is not None:
        return said
    if signal_name(exit_code) is None:
        return None  # it told its error itself: what else the log holds did not end it
    found = patterns.matches(log)
    causes = [match for match in found if not match.pattern.cascade]
    return next(iter(causes or found), None)


def is_cascade(exit_code: int | None, error_type: str, message: str, log: str) -> bool:
    """Whether the rank ended because a peer did: it says so, or aborted with nothing else in its log."""
    found = reason(exit_code, error_type, message, log)
    if found is None or not found.pattern.cascade:
        return False
    return bool(error_type) or signal_name(exit_code) == "SIGABRT"


def evidence(exit_code: int | None, failed: Mapping[str, Any] | None, log: str) -> dict[str, Any]:
    """Evidence of a ``rank_exit`` alert.

    Args:
        exit_code: as ``multiprocessing`` gives it (negative: the signal); None when nobody saw it.
        failed: the rank's ``failed`` datagram, if it came.
        log: the end of its log.
    """
    said = failed or from_log(log)
    error_type, message = str(said.get("error_type") or ""), str(said.get("message") or "")
    found = reason(exit_code, error_type, message, log)
    known = {"pattern": found.pattern.name, "cause": found.pattern.cause} if found else {}
    if said.get("at") is not None:
        known["failed_at"] = said["at"]
    return {
        "exit_code": exit_code,
        "signal": signal_name(exit_code),
        "error_type": error_type,
        "message": message[:1000],
        "traceback": str(said.get("traceback") or "")[-TRACEBACK_CHARS:],
        "user_frame": said.get("user_frame"),
        "unloadable": unloadable.reason(said)[:1000],
        "cascade": is_cascade(exit_code, error_type, message, log),
        "log_tail": log[-LOG_TAIL_CHARS:],
        **known,
    }
