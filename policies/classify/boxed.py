"""Tracebacks in boxes, as rich draws them (typer, accelerate, many a script), in the interpreter's own form. Pure."""

from __future__ import annotations

import re

START = "Traceback (most recent call last):"
"""Begins a traceback of the interpreter."""
BOXED = " Traceback (most recent call last) "
"""Is in the first line of a box."""
_BEGIN = re.compile(rf"^(?P<before>.{{0,200}}?)[╭┌+][─-]+{re.escape(BOXED)}[─-]+[╮┐+]\s*$")
_END = re.compile(r"^.{0,200}?[╰└+][─-]+[╯┘+]\s*$")
_CODE = re.compile(r"^(?:❱|>)? {0,8}\d{1,7} |^[╭│╰┌└+|]")
"""Begins a line of the source, or of the local variables."""
_FRAME = re.compile(r"(?P<file>\S.{0,4095}):(?P<line>\d{1,9}) ?in ?(?P<name>\S{1,200})")
_ROWS = 50
"""A path that is longer than the box is wide takes several rows."""


def unboxed(text: str) -> str:
    """Return the text with rich's tracebacks as the interpreter prints them: without the source and the variables.

    Launchers' prefixes and colours must be gone. A box whose beginning is missing is left as it is.
    """
    if BOXED not in text:
        return text
    lines: list[str] = []
    box: list[str] | None = None
    for line in text.splitlines(keepends=True):
        if box is None:
            if begin := _BEGIN.match(line):
                box = []
                lines += [f"{begin['before']}\n", f"{START}\n"] if begin["before"].strip() else [f"{START}\n"]
            else:
                lines.append(line)
        elif line.startswith(("│ ", "| ")):
            box.append(line[2:].rstrip().removesuffix(line[0]).rstrip())
        else:
            lines += _frames(box)
            box = None
            if not _END.match(line):
                lines.append(line)
    return "".join([*lines, *_frames(box or [])])


def _frames(rows: list[str]) -> list[str]:
    found: list[str] = []
    parts: list[str] = []
    for row in rows:
        if not row.strip() or row.startswith(" ") or _CODE.match(row):
            parts = []
            continue
        parts = [*parts[-_ROWS:], row]
        if frame := _FRAME.fullmatch("".join(parts)):
            found.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["name"]}\n')
            parts = []
    return found
