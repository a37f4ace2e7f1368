"""Where in the nested state something is, and the message for a place that cannot be saved."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ScriptRefusedError

Path = tuple[str | int, ...]


def refused(path: Path, what: str, instead: str = "") -> ScriptRefusedError:
    """Return the error for a part of the state that cannot be saved."""
    return ScriptRefusedError(
        f"state {dotted(path)!r}: {what}.{f' To save it, {instead}.' if instead else ''}"
    )


def dotted(path: Path) -> str:
    """Return the name of a place in the nested state."""
    return ".".join(map(str, path))


def key_name(key: Any) -> str:
    """Return a dictionary's key as text in a name; Python writes no number of thousands of digits."""
    try:
        return str(key)
    except ValueError:
        return f"{key:#x}" if isinstance(key, int) else f"<{type(key).__name__}>"
