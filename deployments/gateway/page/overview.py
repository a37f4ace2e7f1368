"""The first view: jobs, machines, what waits for a person, recent incidents, the pool."""

from __future__ import annotations

from typing import Any

from holdfast import redact
from holdfast.deployments.gateway.api.approvals import question
from holdfast.deployments.gateway.detectors.rehearsals import of_job, unsaved_of
from holdfast.deployments.gateway.fleet import times
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.deployments.gateway.site import Site
from holdfast.models.alert import Incident, IncidentState
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState

RECENT = 30


def overview(gateway: Gateway) -> dict[str, Any]:
    """Return the whole view. Blocks for the ledger."""
    ledger = gateway.site.ledger
    jobs, machines = ledger.jobs(), ledger.machines()
    still_open = ledger.incidents(state=IncidentState.OPEN, evidence=False)
    waits = ledger.waits()
    waiting = [ledger.incident(wait.incident_id, evidence=False) for wait in waits]
    newest = ledger.incidents(limit=RECENT, evidence=False)
    recent = {row.id: row for row in (*still_open, *waiting, *newest)}
    reached = ledger.max_steps()
    away = gateway.dispatcher.prefect_away_since
    return {
        "jobs": [_job(gateway, job, still_open, reached.get(job.name, 0)) for job in jobs],
        "machines": columns(gateway.site, machines),
        "incidents": [incident_line(row) for row in sorted(recent.values(), key=lambda row: -row.opened_at)],
        "asks": [ask for row in still_open if (ask := question(row, ledger.actions(row.id, "approve")))],
        "waits": [wait.model_dump(mode="json") for wait in waits],
        "pool": _pool(gateway, machines),
        "prefect": {
            "ui": prefect_ui(gateway),
            "up": away is None,
            "away_since": away,
            "lacks": gateway.dispatcher.lacks,
        },
    }


def columns(site: Site, machines: list[Machine]) -> dict[str, list[Any]]:
    """Return one list per field: a thousand machines are a few lists."""
    return {
        "name": [row.name for row in machines],
        "state": [row.state.value for row in machines],
        "job": [row.job for row in machines],
        "role": [row.role for row in machines],
        "scope": [row.cordon_scope.value if row.cordon_scope else None for row in machines],
        "reason": [row.cordon_reason for row in machines],
        "seen_at": [round(row.seen_at) for row in machines],
        "late_s": [site.late_s(row) for row in machines],
        "address": [row.address for row in machines],
    }


def incident_line(row: Incident) -> dict[str, Any]:
    """Return the fields of one incident in a list."""
    return {
        "id": row.id,
        "job": row.job,
        "class": row.incident_class.value,
        "state": row.state.value,
        "machine": row.machine,
        "rank": row.rank,
        "detected_at": row.detected_at,
        "recovered_at": row.recovered_at,
        "closed_at": row.closed_at,
        "summary": row.summary[:500],
    }


def prefect_ui(gateway: Gateway) -> str | None:
    """Return the address of the Prefect UI; None: it is none that a browser should follow."""
    ui = gateway.site.settings.prefect_ui
    return redact.link(ui) if ui.startswith(("http://", "https://")) else None


def job_facts(gateway: Gateway, job: Job, reached: int) -> dict[str, Any]:
    """Return the facts of a job that every view shows; ``reached``: its furthest step in the ledger."""
    spec = job.spec
    seen = max((run.step for _, run in gateway.site.fleet.ranks(job)), default=0)
    return {
        "name": job.name,
        "state": job.state.value,
        "mode": spec.mode.value,
        "epoch": job.epoch,
        "step": max(reached, seen),
        "code_version": job.code_version,
        "machines": len(job.machines),
        "world_size": spec.world_size,
        "tp": spec.parallelism.tp,
        "pp": spec.parallelism.pp,
        "dp": spec.parallelism.dp(spec.world_size),
        "submitted_at": job.submitted_at,
        "done_at": job.done_at,
        "skipped_steps": gateway.site.skipped_steps(job),
        "kept_signals": gateway.on_hold.describe(job.name),
        "roles": gateway.roles.view(job),
        "restore": of_job(gateway.site, job).model_dump(mode="json"),
        "unsaved": [each.model_dump(mode="json") for each in unsaved_of(gateway.site, job)],
    }


def _job(gateway: Gateway, job: Job, still_open: list[Incident], reached: int) -> dict[str, Any]:
    mine = [row for row in still_open if row.job == job.name]
    # The oldest open incident is the one that is worked on.
    acting = min(mine, key=lambda row: row.opened_at, default=None)
    return {
        **job_facts(gateway, job, reached),
        **times.of(gateway.site, job),
        "incident": incident_line(acting) if acting else None,
    }


def _pool(gateway: Gateway, machines: list[Machine]) -> dict[str, Any]:
    pool = gateway.site.ledger.pool()
    return {
        "target": pool.target,
        "reason": pool.reason,
        "sized": pool.at > 0,
        "standbys": sum(row.state is MachineState.STANDBY for row in machines),
        "provisioning": sum(row.state is MachineState.PROVISIONING for row in machines),
    }
