"""Removal of what launchers, loggers and collectors put around the lines of a log, so that tracebacks can be read.

Prefixes are not listed but learned: what stands before a frame of a traceback, with any numbers, stands before its
other lines too (``srun --label``, ``kubectl logs --prefix --timestamps``, Ray, vLLM, a logger's time). Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.policies.classify import lived_on
from holdfast.policies.classify.boxed import START

_FRAME = re.compile(r'^(?P<prefix>.{1,200}?)  (?:\| )?File "[^"\n]{1,4096}", line \d', re.MULTILINE)
_MARGIN = re.compile(r"[ |+-]*$")
"""Of an exception group, or of a frame within another message: no prefix."""
_PREFIXES = 16
"""So many that differ by more than their numbers: of several hosts or actors."""
_NUMBER = re.compile(r"\d+")
_MEMBERS = re.compile(r"\((\d{1,6}) sub-exceptions?\)")
_RULE = re.compile(r"^ *\+-[+-].*\n?", re.MULTILINE)
_OF_GROUP = re.compile(r"^ *(?:\| ?|\+ (?=Exception Group Traceback ))", re.MULTILINE)
"""Stands before each line of an exception group."""
_KEPT = re.compile(r"^\S{10,40} (?:stdout|stderr) (?P<part>[FP]) ", re.MULTILINE)
"""A container runtime keeps a line so (CRI): whole, or a part that goes on in the next line."""
_ESCAPED = f"{START}\\n"
_DOCKER = '"stream":'
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_PLAIN = {"n": "\n", "t": "\t", "r": ""}
_GOES_ON = frozenset({"debug", "info", "notice", "warn", "warning"})
"""Levels (of loggers) of a traceback with which the program did not end."""


def unwrapped(log: str) -> str:
    """Return the log without what is around its lines; the very log where nothing is."""
    if START not in log:
        return log
    text = lived_on.plain(log)
    if _ESCAPED in text or _DOCKER in text:
        text = "".join(map(_unpacked, text.splitlines(keepends=True)))
    if _KEPT.search(text):
        text = "".join(_parts(text))
    frames = (frame["prefix"] for frame in _FRAME.finditer(text))
    # NumPy's warning of a module built for an older one has the first frame in the line that begins its traceback.
    shapes = dict.fromkeys(
        _shape(each)
        for each in frames
        if not _MARGIN.match(each) and START not in each and not lived_on.handled(each)
    )
    if shapes:
        known = "|".join([*shapes][:_PREFIXES])
        text = re.sub(rf"^(?:{known})", "", text, flags=re.MULTILINE)
    if "Exception Group Traceback" in text and set(_MEMBERS.findall(text)) == {"1"}:
        text = ungrouped(text)  # its only member is what was raised
    return log if text == lived_on.plain(log) else text


def ungrouped(text: str) -> str:
    """Return an exception group without what is drawn around its members."""
    return _OF_GROUP.sub("", _RULE.sub("", text))


def _shape(prefix: str) -> str:
    """Return an expression for a prefix, with any numbers. Lines that say nothing may lack the space at its end."""
    bare = prefix.removesuffix(" ")
    end = r"(?: |(?=\r?$))" if bare != prefix else ""
    return _NUMBER.sub(r"\\d+", re.escape(bare)) + end


def _parts(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        kept = _KEPT.match(line)
        rest = line[kept.end() :] if kept else line
        yield rest.rstrip("\n") if kept and kept["part"] == "P" else rest


def _unpacked(line: str) -> str:
    """Return the traceback in a line of JSON, or the line that Docker kept in it; any other line as it is."""
    if _ESCAPED not in line and _DOCKER not in line:
        return line
    try:
        values = json.loads(line[line.index("{") :])
    except (ValueError, RecursionError):
        return (
            _unescaped(line) if _ESCAPED in line else line
        )  # cut by a collector, or a representation in Python
    if not isinstance(values, dict):
        return line
    if isinstance(values.get("log"), str) and "stream" in values:
        return str(values["log"])
    levels = {str(values.get(name, "")).lower() for name in ("level", "levelname", "severity")}
    raised = [] if levels & _GOES_ON else [each for each in _strings(values) if f"{START}\n" in each]
    return f"{raised[0].rstrip()}\n" if raised else line


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def _unescaped(line: str) -> str:
    before, _, raised = line.partition(START)
    traceback = _ESCAPE.sub(
        lambda each: chr(int(each[1], 16)) if each[1] else _PLAIN.get(each[2], each[2]), raised
    )
    return f"{before}\n{START}{traceback}"
