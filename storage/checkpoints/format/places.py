"""Where in the nested state something is, and the message for a place that cannot be saved."""

from __future__ import annotations

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
