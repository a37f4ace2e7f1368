"""The context of a process that runs playbooks: made once, at first use."""

from __future__ import annotations

from holdfast import settings
from holdfast.operations.context import Context

_current: Context | None = None


def context() -> Context:
    """Return the context of this process, from the project's settings."""
    global _current  # noqa: PLW0603  (one per process, made at first use)
    if _current is None:
        _current = Context(settings.load())
    return _current


def use(new: Context | None) -> None:
    """Replace the context of this process (tests)."""
    global _current  # noqa: PLW0603
    _current = new
