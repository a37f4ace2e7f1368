"""One job over time: steps, ETTR, epochs, incidents, and its time by use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.deployments.gateway.api.approvals import question
from holdfast.deployments.gateway.fleet import times
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.page.overview import incident_line, job_facts
from holdfast.models.alert import IncidentState
from holdfast.models.history import Epoch, Stretch
from holdfast.policies.accounting.ettr_series import series

POINTS = 600
"""Most points of the step curve: more than a screen has columns to show."""
INTERVALS = 60
EPOCHS = 50
INCIDENTS = 200


def job_view(gateway: Gateway, name: str) -> dict[str, Any]:
    """Return the whole view. Blocks for the ledger.

    Raises:
        UnknownError: no such job.
    """
    site = gateway.site
    job, history = site.ledger.job(name), site.ledger.history(name)
    now = job.done_at or site.clock.now()
    time = times.of(site, job)
    curve = [] if time["ettr_note"] else series(history, now, INTERVALS)
    acting = site.ledger.acting(name)
    return {
        **job_facts(gateway, job, site.ledger.max_step(name)),
        **time,
        "begin": min((row.opened_at for row in history.epochs), default=None),
        "until": now,
        "steps": steps(history.epochs, history.stretches),
        "ettr_curve": [[round(p.at, 2), round(p.total, 4), round(p.interval, 4)] for p in curve],
        "incidents": [incident_line(row) for row in history.incidents[-INCIDENTS:]],
        "ask": question(acting, site.ledger.actions(acting.id, "approve")) if acting else None,
        "open": acting.id if acting and acting.state is IncidentState.OPEN else None,
        "epochs": [_epoch(row) for row in history.epochs[-EPOCHS:]],
    }


def steps(epochs: Sequence[Epoch], stretches: Sequence[Stretch]) -> list[list[float | None]]:
    """Return (time, step) along the job's life, thinned to what can be drawn; a null step breaks the line."""
    by_epoch: dict[int, list[Stretch]] = {row.epoch: [] for row in epochs}
    for stretch in stretches:
        by_epoch.setdefault(stretch.epoch, []).append(stretch)
    points: list[list[float | None]] = []
    for epoch in sorted(by_epoch):
        for row in by_epoch[epoch]:
            points.append([round(row.begun_at, 2), float(row.first_step - 1)])
            points.append([round(row.ended_at, 2), float(row.last_step)])
        if by_epoch[epoch]:
            points.append([round(by_epoch[epoch][-1].ended_at + 0.01, 2), None])
    if len(points) <= POINTS:
        return points
    # Breaks stay: without them a restart would look like a slow step.
    every = -(-len(points) // POINTS)
    return [p for number, p in enumerate(points) if p[1] is None or number % every == 0]


def _epoch(row: Epoch) -> dict[str, Any]:
    return {
        "epoch": row.epoch,
        "start_step": row.start_step,
        "last_step": row.last_step,
        "reason": row.reason,
        "code_version": row.code_version,
        "opened_at": row.opened_at,
        "closed_at": row.closed_at,
        "close_reason": row.close_reason,
    }
