"""A part of a rank that ended by an exception while its process lives on, from the rank's log.

The interpreter, and the libraries below, write why a thread, a child process or a task ended, and the rank goes on:
its main thread waits for what that part no longer delivers, and all other ranks wait for this one. In a hang such a
rank stands out by the job's own doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from holdfast.models.agent import EndedPart
from holdfast.policies.classify import envelopes, last_words, lived_on
from holdfast.policies.classify.boxed import START
from holdfast.policies.classify.patterns import RANK_LOG_FILE, Match, registry

_HEAD = re.compile(
    r"^(?:"
    r"Exception in thread (?P<thread>[^\n]{1,200}?):"
    r"|Process (?P<process>[^\n]{1,100}?):"
    r"|.{0,100}\b(?P<task>Task) exception was never retrieved"
    r"|.{0,200}\bAn error has been caught in function '.{1,200}?', process '.{1,100}?' \(\d{1,10}\), "
    r"thread '(?!MainThread')(?P<caught>.{1,100}?)' \(\d{1,20}\):"
    r")[ \t]*$",
    re.MULTILINE,
)
"""Announces the exception: of threading, multiprocessing, asyncio and loguru."""
_ANYWHERE = re.compile(
    r"Exception in thread |\bProcess [^\n]{1,100}:[ \t]*$|Task exception was never retrieved"
    r"|An error has been caught in function ",
    re.MULTILINE,
)
"""The same wherever it stands in a line, as long as what is before each line is not known."""
_AWAY = 6
"""Lines at most between that and a traceback: asyncio names the task; a cause that was never raised has none."""
_INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3")
_NO_THREADS = "no_more_threads"
"""The pattern of libraries that start their threads themselves, and report no exception."""
_MOST_CHARS = 300
_OWN = frozenset(
    [
        "code",
        "numeric",
        "framework",
        "setup",
        "data",
        "data_loader",
        "checkpoint",
        "host_memory",
        "gpu_memory",
        "remote_storage",
        "service",
    ]
)
"""Causes of which the machine is not the source. The others (``gpu``, ``network``, disks) may be its fault."""

_OF_THE_HOST = frozenset(
    {"OSError", "FileNotFoundError", "PermissionError", "NotADirectoryError", "TimeoutError"}
)
"""Without a known cause these may come from a mount or a file that is missing on one machine."""


def begins(text: str, known: Iterable[Match]) -> bool:
    """Return whether such an ending is announced in ``text``, of which ``known`` are the lines that are recognised."""
    return _ANYWHERE.search(text) is not None or any(match.pattern.name == _NO_THREADS for match in known)


def ended_part(log: str) -> EndedPart | None:
    """Return the newest part that ended by an exception; None: the log names none."""
    text = last_words.unprefixed(envelopes.unwrapped(log))
    for head in reversed(list(_HEAD.finditer(text))):
        start = text.find(START, head.end())
        if start < 0 or text.count("\n", head.end(), start) > _AWAY:
            continue
        error = last_words.from_log(_exception(text, start))
        kind, message = error.get("error_type", ""), error.get("message", "")
        if not kind:
            continue
        known = last_words.match_exception(error) or last_words.behind(error)
        return EndedPart(
            part=_part(head),
            error=(f"{kind}: {message}" if message else kind)[:_MOST_CHARS],
            place=_place(error.get("traceback", "")),
            own=known.pattern.cause in _OWN if known else kind not in _OF_THE_HOST,
        )
    return _no_thread(log)


def _part(head: re.Match[str]) -> str:
    if head["process"]:
        return f"child process {head['process']}"
    return "task of asyncio" if head["task"] else f"thread {head['thread'] or head['caught']}"


def _exception(text: str, start: int) -> str:
    printed = text[start : _end(text, start)]
    return envelopes.ungrouped(printed) if text[:start].endswith("Exception Group ") else printed


def _end(text: str, start: int) -> int:
    """Return where the exception that is printed from ``start`` ends, those that it came from included."""
    at, inside = start, True
    for line in text[start:].splitlines(keepends=True):
        rest = line.strip()
        if inside:
            inside = not rest or line[0] in " \t>" or rest.startswith((START, *last_words.LINKS))
        elif rest and not rest.startswith(last_words.LINKS):
            return at
        else:
            inside = bool(rest)
        at += len(line)
    return at


def _place(traceback: str) -> str:
    """Return the innermost place in a file that is not installed, else the innermost of all."""
    frames = last_words.frames(traceback)
    own = [frame for frame in frames if not any(folder in frame[0] for folder in _INSTALLED)]
    return next((f"{PurePosixPath(file).name}:{line}" for file, line, _ in reversed(own or frames)), "")


def _no_thread(log: str) -> EndedPart | None:
    found = [
        match
        for match in registry(RANK_LOG_FILE).matches(lived_on.recent(log))
        if match.pattern.name == _NO_THREADS and not lived_on.handled(match.line)
    ]
    return EndedPart(part="", error=found[-1].line.strip()[:_MOST_CHARS], own=True) if found else None
