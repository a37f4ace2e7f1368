"""The Grafana dashboard: ``python -m holdfast.deployments.grafana.make > deployments/grafana/holdfast.json``.

Written by a program so that every panel looks alike; import the file in Grafana and choose the Prometheus source.
"""

from __future__ import annotations

import json
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${source}"}

# Title, unit, kind of panel, width of 24, and (query, legend) pairs.
PANELS: tuple[tuple[str, str, str, int, tuple[tuple[str, str], ...]], ...] = (
    (
        "ETTR",
        "percentunit",
        "timeseries",
        8,
        (('holdfast_job_ettr{job=~"$job"}', "{{job}} {{over}}"),),
    ),
    (
        "Lost time by phase",
        "s",
        "timeseries",
        8,
        (('sum by (job, phase) (holdfast_job_lost_seconds{job=~"$job"})', "{{job}} {{phase}}"),),
    ),
    (
        "Lost time by class",
        "s",
        "timeseries",
        8,
        (('sum by (job, incident_class) (holdfast_job_lost_seconds{job=~"$job"})', "{{incident_class}}"),),
    ),
    ("Steps", "short", "timeseries", 12, (('holdfast_job_step{job=~"$job"}', "{{job}}"),)),
    (
        "Epochs",
        "short",
        "timeseries",
        6,
        (('holdfast_job_epoch{job=~"$job"}', "{{job}}"),),
    ),
    (
        "Slowest and fastest rank",
        "short",
        "timeseries",
        6,
        (
            ('min by (job) (holdfast_rank_step{job=~"$job"})', "{{job}} slowest"),
            ('max by (job) (holdfast_rank_step{job=~"$job"})', "{{job}} fastest"),
        ),
    ),
    (
        "Open incidents",
        "short",
        "stat",
        6,
        (("sum by (incident_class) (holdfast_open_incidents)", "{{incident_class}}"),),
    ),
    (
        "Incidents per hour",
        "short",
        "timeseries",
        9,
        (
            (
                "sum by (incident_class) (increase(holdfast_incidents_total[1h]))",
                "{{incident_class}}",
            ),
        ),
    ),
    ("Machines", "short", "timeseries", 9, (("holdfast_machines", "{{state}}"),)),
    (
        "Alerts per minute",
        "short",
        "timeseries",
        8,
        (("sum by (outcome) (rate(holdfast_alerts_total[5m])) * 60", "{{outcome}}"),),
    ),
    (
        "Alert to incident, incident to flow run (p99)",
        "s",
        "timeseries",
        8,
        (
            (
                "histogram_quantile(0.99, sum by (le) (rate(holdfast_alert_accept_seconds_bucket[5m])))",
                "accept",
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(holdfast_dispatch_seconds_bucket[5m])))",
                "dispatch",
            ),
        ),
    ),
    (
        "Playbooks started again, run without Prefect",
        "short",
        "timeseries",
        8,
        (
            ("sum by (reason) (increase(holdfast_playbook_attempts_total[1h]))", "{{reason}}"),
            ("increase(holdfast_offline_playbooks_total[1h])", "without Prefect"),
        ),
    ),
    (
        "Checkpoints: copies to the peer, uploads",
        "short",
        "timeseries",
        8,
        (
            ("sum by (outcome) (rate(holdfast_replications_total[5m]))", "peer {{outcome}}"),
            ("sum by (outcome) (rate(holdfast_uploads_total[5m]))", "S3 {{outcome}}"),
        ),
    ),
    (
        "Start and fence on machines (p99)",
        "s",
        "timeseries",
        8,
        (
            ("histogram_quantile(0.99, sum by (le) (rate(holdfast_start_seconds_bucket[1h])))", "start"),
            ("histogram_quantile(0.99, sum by (le) (rate(holdfast_fence_seconds_bucket[1h])))", "fence"),
        ),
    ),
    (
        "Control plane: Prefect up, failed rounds, lost reports",
        "short",
        "timeseries",
        8,
        (
            ("holdfast_prefect_up", "Prefect up"),
            ("sum by (loop) (increase(holdfast_loop_errors_total[1h]))", "failed {{loop}}"),
            ("sum(increase(holdfast_reports_dropped_total[1h]))", "reports lost"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard's model, schema version 39 (Grafana 10.2 and later)."""
    panels, x, y = [], 0, 0
    for number, (title, unit, kind, width, queries) in enumerate(PANELS, start=1):
        if x + width > 24:
            x, y = 0, y + 8
        panels.append(
            {
                "id": number,
                "title": title,
                "type": kind,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": width, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "targets": [
                    {"refId": chr(65 + i), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
                    for i, (query, legend) in enumerate(queries)
                ],
            }
        )
        x += width
    return {
        "uid": "holdfast",
        "title": "Holdfast",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-6h", "to": "now"},
        "tags": ["holdfast"],
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "job",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(holdfast_job_step, job)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))  # noqa: T201
