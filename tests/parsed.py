"""Parses Python source, whatever else goes on in the process."""

from __future__ import annotations

import ast
import gc


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of ``source``; no garbage is collected meanwhile.

    A finalizer in the middle of it may let another thread parse as well. CPython counts the nesting of both in one
    place, and ends with "AST constructor recursion depth mismatch".
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_on:
            gc.enable()
