"""Whether an exception only reports that a peer is gone. Imported by the fork server, so that no rank waits for it."""

from __future__ import annotations

import traceback

from holdfast.policies.classify import last_words


def explains(error: Exception) -> bool:
    """Return whether a lost peer explains ``error``: its cause is elsewhere."""
    text = "".join(traceback.format_exception(error))
    found = last_words.match_exception(
        {"error_type": type(error).__name__, "message": str(error), "traceback": text}
    )
    return found is not None and found.pattern.cascade


explains(
    RuntimeError("gloo: Connection closed by peer")
)  # reads the patterns, and compiles what such errors need
