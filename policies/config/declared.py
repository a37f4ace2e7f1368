"""Alerts that playbooks of other packages wait for, as declared by their entries in the policy file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.models.alert import Alert, IncidentClass
from holdfast.policies.config.ladders import PlaybookPolicy, When


def meaning(
    alert: Alert, playbooks: Mapping[IncidentClass, PlaybookPolicy]
) -> tuple[IncidentClass, float] | None:
    """Return the class that waits for ``alert`` and its confidence; the first by name where several do."""
    for name in sorted(playbooks):
        if any(_fits(alert, when) for when in playbooks[name].when):
            return name, playbooks[name].confidence
    return None


def _fits(alert: Alert, when: When) -> bool:
    return alert.kind is when.kind and all(
        _has(alert.evidence.get(key), wanted) for key, wanted in when.evidence.items()
    )


def _has(value: Any, wanted: str | float | bool) -> bool:
    if isinstance(value, list | tuple | set):
        return wanted in value
    return bool(value == wanted)
