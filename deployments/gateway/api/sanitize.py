"""Sanitize untrusted input before it is stored: no NUL, no half characters, no endless texts. Pure."""

from __future__ import annotations

import math
from typing import Any

from holdfast.errors import RefusedError
from holdfast.models.alert import Alert

MAX_ALERT_BYTES = 64 * 1024
MAX_DEPTH = 12


class AlertTooLargeError(RefusedError):
    """One alert carries more evidence than a person can read."""

    status = 413


def tidy(alert: Alert) -> Alert:
    """Return the alert with texts that every database takes.

    Raises:
        AlertTooLargeError: it is larger than 64 KiB.
    """
    cleaned = Alert.model_validate(_clean(alert.model_dump(), 0))
    size = len(cleaned.model_dump_json())
    if size > MAX_ALERT_BYTES:
        raise AlertTooLargeError(f"alert of {size} bytes (limit {MAX_ALERT_BYTES}): shorten its evidence")
    return cleaned


def clean(text: str) -> str:
    """Return the text as every database takes it."""
    # PostgreSQL refuses NUL, and no database takes half a surrogate pair.
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        if depth >= MAX_DEPTH:
            return "(nested too deep)"
        return {str(_clean(key, depth)): _clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return "(nested too deep)" if depth >= MAX_DEPTH else [_clean(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number: no list that has this alert could be answered
    return value
