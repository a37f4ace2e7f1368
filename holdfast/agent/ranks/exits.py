"""Root cause of a rank's end: turns exit status, last words and log into the evidence of an alert. Pure."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.agent.ranks.own_code import is_installed, is_own
from holdfast.policies.classify import boxed, envelopes, last_words, lived_on, mixed, unloadable, usage_errors
from holdfast.policies.classify.patterns import Match

LOG_TAIL_CHARS = 2000
TRACEBACK_CHARS = 4000
JUDGED_CHARS = LOG_TAIL_CHARS + TRACEBACK_CHARS
"""Of the end of a log, without stacks that were dumped into it."""
LOG_READ_BYTES = 256 << 10
"""Enough for that much before the stacks of a hundred threads."""
_DUMPED = re.compile(
    r'^(?:(?:Current thread|Thread) 0x[0-9a-f]{1,16} |  File "[^"]{1,4096}", line \d{1,9} in |  <no Python frame>$'
    r"|  \.\.\.$|Extension modules: |frame #\d{1,4}: )",
    re.MULTILINE,
)
"""Begins a line of the stacks that Python's faulthandler or torch's errors write: they name no cause."""
_FILE = re.compile(r'^  File "([^"]{1,4096})", line \d', re.MULTILINE)
_HERE = str(Path(__file__).absolute().parents[2])
_OUR_FOLDERS = tuple(
    os.path.join(_HERE, name, "") for name in ("agent", "data", "integrations", "session", "storage")
)
_SESSION = os.path.join("holdfast", "session", "session.py")
_LAUNCH = "unspecified launch failure"
"""CUDA's words for a kernel that faulted, and for one that ended itself (``trap``)."""
_ABSTRACT = "Can't instantiate abstract class "
_LAUNCHER = os.path.join("horovod", "runner", "")
_ASSERTED = "cuda_assert"
"""Pattern of the exception after an assertion in a kernel failed: which one, only the log has."""


def signal_name(exit_code: int | None) -> str | None:
    """Return ``SIGKILL`` for -9; None when no signal ended the process."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def reason(exit_code: int | None, error: Mapping[str, Any], log: str) -> Match | None:
    """Return the known pattern for why the rank ended: in its last words, or in the log of one that was killed.

    Last words that say nothing known may stand on others: what the exception was raised from, or while handling; or
    what its log has, where they say that the error stands above.

    A rank that reported its error itself died of that, whatever else its log holds. A traceback in the log of one that
    a signal ended is only one more line: the rank may have lived on after it. So may one that ended with a status,
    where more follows; without an exception it may have written why.
    """
    if signal_name(exit_code) is None:
        if not error.get("error_type"):
            return last_words.cause(log)
        above = last_words.cause(log) if last_words.points_above(error) else None
        found = _of_error(error) or above
        if found is None and not _is_own(error):
            found = last_words.cause(last_words.after_last_raised(log))
        failed_assertion = found is not None and found.pattern.name == _ASSERTED
        return (last_words.asserted(log) if failed_assertion else None) or _before_trap(found, log)
    return _before_trap((_of_error(error) if _is_own(error) else None) or last_words.cause(log), log)


def _of_error(error: Mapping[str, Any]) -> Match | None:
    return last_words.match_exception(error) or last_words.behind(error)


def _before_trap(found: Match | None, log: str) -> Match | None:
    """Return why a kernel ended itself, where the log has that; else what was found."""
    return (last_words.trapped(log) if found is not None and _LAUNCH in found.line else None) or found


def is_cascade(exit_code: int | None, error: Mapping[str, Any], log: str) -> bool:
    """Return whether the rank ended because a peer did: it reports so, or ended with nothing else in its log.

    A rank that reported its error itself may have been killed afterwards, when it did not end. A traceback that is only
    in the log does not indicate a kill.
    """
    found = reason(exit_code, error, log)
    if found is None or not found.pattern.cascade:
        return False
    signal = signal_name(exit_code)
    spoke = bool(error.get("error_type")) and (signal is None or _is_own(error))
    silent = signal is None and not error.get("error_type")
    return spoke or silent or signal == "SIGABRT"


def _end(log: str) -> str:
    log = last_words.without_boxes(log)
    end = log[-JUDGED_CHARS:]
    return without_dumps(log)[-JUDGED_CHARS:] if _DUMPED.search(end) else end


def _with_its_beginning(log: str, end: str) -> str:
    """Return the end of a log from the beginning of the traceback that it is in the midst of, where it is in one.

    Stacks of models, and messages with a line for each weight, are longer than what is read of a log. Whatever else is
    between its beginning and the end, the log went on after it.
    """
    cut = len(log) - len(end)
    start = log.rfind(boxed.START, 0, max(0, cut))
    if start < 0 or boxed.START in end or not log.endswith(end):
        return end
    start = log.rfind("\n", 0, start) + 1
    between = last_words.unprefixed(log[start : log.rfind("\n", 0, cut) + 1]).splitlines()[1:]
    return log[start:] if all(not line.strip() or last_words.within(line) for line in between) else end


def without_dumps(log: str) -> str:
    """Return the log without dumped stacks, which may be longer than what was written before them."""
    return "".join(line for line in log.splitlines(keepends=True) if not _DUMPED.match(line.rstrip()))


def _is_own(error: Mapping[str, Any]) -> bool:
    """Return whether these are the rank's own last words, not those read from its log."""
    return error.get("at") is not None


def _by_place(traceback: str, message: str) -> dict[str, str]:
    """Return the cause that follows from the file which raised an exception without a known pattern."""
    files = _FILE.findall(traceback)
    if not files:
        return {}
    if files[-1].startswith(_OUR_FOLDERS):
        return {"cause": "framework"}
    if not is_installed(files[-1]):
        return {}
    # A class of a library's, made by that library, lacks what another one in the image asks for; a launcher fell over
    # what ranks print.
    return {"cause": "setup"} if message.startswith(_ABSTRACT) or _LAUNCHER in files[-1] else {}


def _from_log(exit_code: int | None, end: str, code: str) -> dict[str, Any]:
    """Return the exception that the log names; its place in the job's code, where the process ended with it.

    A program that prints its traceback itself leaves with status 1 (Hydra, Lightning's command line, click).
    """
    log = lived_on.recent(end)
    if exit_code == usage_errors.STATUS and last_words.after_last_raised(log):
        return {}  # an exception ends a program with status 1: it went on after this one
    found: dict[str, Any] = dict(last_words.from_log(log))
    frames = last_words.frames_at_end(log) if code and found and exit_code == 1 else []
    if not frames:
        return found
    names = {name for _, _, name in frames}
    inside = any(name == "restore" and file.endswith(_SESSION) for file, _, name in frames)
    places = (_place(frame, code) for frame in reversed(frames))
    return found | {
        "user_frame": next((place for place in places if place), None),
        "restoring": inside and "require_room" not in names,
    }


def _place(frame: tuple[str, int, str], code: str) -> str | None:
    file, line, name = frame
    if file.startswith("<"):
        return None
    path = os.path.normpath(os.path.join(code, file))
    return f"{os.path.relpath(path, code)}:{line} in {name}" if is_own(path, code) else None


def evidence(
    exit_code: int | None, failed: Mapping[str, Any] | None, log: str, code: str = ""
) -> dict[str, Any]:
    """Return the evidence of a ``rank_exit`` alert.

    Args:
        exit_code: as ``multiprocessing`` gives it (negative: the signal); None when it was not observed.
        failed: the rank's ``failed`` datagram, if it came.
        log: the end of its log.
        code: folder of the job's code, without links; empty where it is not known.
    """
    text = envelopes.unwrapped(mixed.separated(log))
    end = _end(text)
    error = failed or _from_log(exit_code, _with_its_beginning(text, end), code)
    error_type, message = str(error.get("error_type") or ""), str(error.get("message") or "")
    found = reason(exit_code, error, end)
    known = {"pattern": found.pattern.name, "cause": found.pattern.cause} if found else {}
    if found is None:
        known = _by_place(str(error.get("traceback") or ""), message)
    if error.get("at") is not None:
        known["failed_at"] = error["at"]
    return {
        "exit_code": exit_code,
        "signal": signal_name(exit_code),
        "error_type": error_type,
        "message": message[:1000],
        "traceback": str(error.get("traceback") or "")[-TRACEBACK_CHARS:],
        "user_frame": error.get("user_frame"),
        "unloadable": unloadable.reason(error)[:1000],
        "cascade": is_cascade(exit_code, error, end),
        "log_tail": log[-LOG_TAIL_CHARS:],
        **known,
    }
