"""Text of others, made fit to be shown: an exception of a training script, a log line, a label, a machine's name.

A terminal obeys what is between such text: it moves the cursor, sets its title, puts something into the clipboard, or
turns the direction of writing so that a line reads otherwise than it is. So what is not printable is shown as its
number, wherever text reaches a terminal or a file that people look at in one. Programs get it as it was (``--json``).
"""

from __future__ import annotations

import logging

from holdfast import redact
from holdfast.thinned import Thinned

_LINES = "\n\t"


def size(nbytes: float) -> str:
    """Return a number of bytes for people."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def plain(text: object, *, instead: str | None = None, lines: bool = True) -> str:
    """Return ``text`` with everything that is not printable as its number, such as ``\\x1b``.

    Among it are escape sequences, with eight bits as well, and marks that turn the direction of writing.

    Args:
        text: of whatever origin.
        instead: of such a number.
        lines: keep line breaks and tabs.
    """
    string = str(text)
    if string.isprintable():
        return string
    return "".join(
        sign
        if sign.isprintable() or (lines and sign in _LINES)
        else _number(sign)
        if instead is None
        else instead
        for sign in string
    )


def _number(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PlainFormatter(logging.Formatter):
    """Formatter for log files, which people read in terminals."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line or lines, printable, without passwords of URLs."""
        return plain(redact.passwords(super().format(record)))


def log_plainly(level: int = logging.INFO, filename: str | None = None, *, force: bool = False) -> None:
    """Set the process's log up: to standard error, or to a file. Warnings that repeat are thinned.

    ``force``: also where a library has set one up before.
    """
    handler = logging.FileHandler(filename) if filename else logging.StreamHandler()
    handler.addFilter(Thinned())
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=force)
