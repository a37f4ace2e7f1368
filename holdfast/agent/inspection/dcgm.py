"""NVIDIA DCGM, where it is installed: the results of its health watches.

Through ``dcgmi``, whose JSON is that of ``dcgmi/Health.cpp`` and ``dcgmi/DcgmiOutput.cpp`` (github.com/NVIDIA/DCGM).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.agent.inspection.base import Sign
from holdfast.agent.inspection.tool import Tool
from holdfast.models.alert import AlertKind
from holdfast.policies.classify.dcgm_diag import json_in

LEVELS = {"failure": "fail", "warning": "warn"}


class DcgmHealth:
    """A check: reads the results of DCGM's watches; starts no test."""

    name = "dcgm_health"

    def __init__(self, timeout_s: float, command: str = "dcgmi") -> None:
        self._dcgmi = Tool(command, timeout_s)

    def look(self) -> list[Sign]:
        """Return a sign per system of a GPU or switch that is not well; none without DCGM or its watches."""
        return signs(self._dcgmi.ask("health", "-c", "-j"))


def signs(output: str) -> list[Sign]:
    """Return the signs in the output of ``dcgmi health -c -j``."""
    answer = json_in(output)
    if answer is None:
        return []
    return list(_unhealthy(answer)) or [Sign(kind=AlertKind.DCGM_HEALTH, ok=True, detail="healthy")]


def _unhealthy(answer: dict[str, Any]) -> Iterator[Sign]:
    """Yield signs of ``body: GPU: children: 0: children: Errors: children: Memory system: value, overflow``."""
    for group, entities in _items(answer.get("body")):
        for entity, found in _items(_part(entities, "children")):
            systems = _part(_part(_part(found, "children"), "Errors"), "children")
            for system, node in _items(systems):
                level = LEVELS.get(str(_part(node, "value")).lower())
                if level:
                    yield _sign(f"{group} {entity}", system, level, _text(node))


def _sign(device: str, system: str, level: str, text: str) -> Sign:
    return Sign(
        kind=AlertKind.DCGM_HEALTH,
        ok=False,
        detail=f"{device}: {system}: {text}"[:500],
        device=f"{device} {system}",
        evidence={"level": level, "system": system},
        sure=False,
    )


def _text(node: Any) -> str:
    items = _part(node, "overflow")
    return " ".join(str(_part(each, "value") or each) for each in items) if isinstance(items, list) else ""


def _part(node: Any, name: str) -> Any:
    return node.get(name) if isinstance(node, dict) else None


def _items(node: Any) -> list[tuple[str, Any]]:
    return list(node.items()) if isinstance(node, dict) else []
