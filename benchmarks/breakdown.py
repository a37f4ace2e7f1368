"""Where the time of a recovery went: from the fault, over the alert and the playbook's actions, to the new step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Spans = dict[str, float]
"""Seconds by name, in the order of events."""


def of(record: dict[str, Any], injected_at: float, new_step_at: float) -> Spans:
    """Spans of one incident.

    Args:
        record: as the gateway returns it: incident, actions, alerts.
        injected_at: when the fault was injected.
        new_step_at: when the first new step was complete.
    """
    incident = record["incident"]
    first_task_at = incident["first_task_at"] or incident["detected_at"]
    first_act_at = min([action["begun_at"] for action in record["actions"]] or [first_task_at])
    spans = {
        "fault to alert accepted": incident["detected_at"] - injected_at,
        "alert to first task": first_task_at - incident["detected_at"],
    }
    before = first_task_at
    if first_act_at < first_task_at:  # the gateway's head start: the first task is beside it
        spans["alert to the gateway's first act"] = first_act_at - incident["detected_at"]
        before = first_act_at
    for action in record["actions"]:
        ended = action["done_at"] or action["begun_at"]
        spans[f"until {action['kind']} {_target(action)}".rstrip()] = action["begun_at"] - before
        spans[f"{action['kind']} {_target(action)}".rstrip()] = ended - action["begun_at"]
        before = ended
        if action["kind"] == "start":
            spans["start returned to new step"] = new_step_at - ended
    spans["total"] = new_step_at - injected_at
    return spans


def median(many: Sequence[Spans]) -> Spans:
    """Median of each span over incidents of one kind."""
    names = list(dict.fromkeys(name for spans in many for name in spans))
    return {
        name: round(statistics.median([spans[name] for spans in many if name in spans]), 4) for name in names
    }


def text(spans: Spans) -> str:
    """One line per span."""
    return "\n".join(f"    {seconds:7.3f} s  {name}" for name, seconds in spans.items())


def _target(action: dict[str, Any]) -> str:
    """Of the key, what is the same in every run (a tier, but neither epoch nor machine)."""
    parts = str(action["key"]).split(":")[1:-1]
    return " ".join(parts)
