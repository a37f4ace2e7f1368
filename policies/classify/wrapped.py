"""Tracebacks whose lines a console broke at its width (rich's, 80 columns), put together again. Pure."""

from __future__ import annotations

import re

_BROKEN = re.compile(
    r'^  File(?: ?\n"| "[^"\n]{1,1000}(?:"(?:,(?: line(?: \d{1,9},(?: in)?)?)?)?)? ?\n)', re.MULTILINE
)
"""A frame whose line ends before its function."""
_AT_A_SPACE = re.compile(r" \n(?=\S)")
"""A line that was broken between two words keeps the space at its end."""
_IN_THE_PATH = re.compile(r'^(  File "[^"\n]{1,500})\n(?=[^"\n]{0,500}", line)', re.MULTILINE)
_AFTER_THE_PATH = re.compile(r'^(  File "[^"\n]{1,1000}")\n(?=, line)', re.MULTILINE)


def rejoined(text: str) -> str:
    """Return the text with each frame and message of its tracebacks on one line; the very text where none broke."""
    if not _BROKEN.search(text):
        return text
    whole = _IN_THE_PATH.sub(r"\1", _AT_A_SPACE.sub(" ", text))
    return _AFTER_THE_PATH.sub(r"\1", whole)
