"""The dashboard shows what there is: every metric and label in it exists, and panels do not overlap."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.agent.metrics import Metrics as AgentMetrics
from holdfast.deployments.gateway.metrics import Metrics as GatewayMetrics
from holdfast.deployments.grafana.make import dashboard

PATH = Path(__file__).resolve().parents[2] / "deployments" / "grafana" / "holdfast.json"
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 10,
            "items": {
                "type": "object",
                "required": ["id", "title", "type", "gridPos", "targets", "datasource"],
                "properties": {
                    "type": {"enum": ["timeseries", "stat"]},
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 200},
                    },
                    "targets": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "object", "required": ["refId", "expr", "legendFormat"]},
                    },
                },
            },
        },
    },
}


@pytest.fixture
def shown() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


def metrics() -> dict[str, set[str]]:
    """Every name that Prometheus would store -> its labels."""
    found: dict[str, set[str]] = {}
    for registry in (AgentMetrics().registry, GatewayMetrics().registry):
        for collector in list(registry._collector_to_names):
            labels = set(getattr(collector, "_labelnames", ()))
            for name in registry._collector_to_names[collector]:
                found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    return found


def test_the_file_is_what_the_program_writes(shown: dict[str, Any]) -> None:
    """Regenerate with `python -m holdfast.deployments.grafana.make`."""
    assert shown == dashboard()


def test_the_structure_is_grafanas(shown: dict[str, Any]) -> None:
    """Of its dashboard model; panels have numbers of their own and do not overlap."""
    jsonschema.validate(shown, SCHEMA)
    assert len({panel["id"] for panel in shown["panels"]}) == len(shown["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in shown["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_and_label_exists(shown: dict[str, Any]) -> None:
    """In the registries of the agent and the gateway."""
    known = metrics()
    for panel in shown["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"holdfast_\w+", target["expr"])
            assert names
            assert [name for name in names if name not in known] == [], panel["title"]
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for group in re.findall(r"by \(([^)]+)\)", target["expr"]):
                used |= {label.strip() for label in group.split(",")}
            assert used <= known[names[0]], (panel["title"], used - known[names[0]])


def test_the_check_sees_a_metric_that_is_not_there() -> None:
    """The control."""
    assert "holdfast_job_ettr" in metrics()
    assert "holdfast_job_ettrs" not in metrics()
    assert metrics()["holdfast_dispatch_seconds_bucket"] == {"le"}
