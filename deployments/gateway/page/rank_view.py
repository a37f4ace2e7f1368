"""The ranks of a job: all of them in columns, and one of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from holdfast.deployments.gateway.gateway import Gateway
from holdfast.errors import UnknownError
from holdfast.models.agent import RankPhase, RankState
from holdfast.models.alert import Alert, Incident
from holdfast.models.job import Job, JobSpec, Parallelism
from holdfast.policies.detect import phase_times
from holdfast.policies.diagnose.groups import groups_of, place_of
from holdfast.policies.pool import topology
from holdfast.policies.restore import placement

STATES = ("silent", "starting", "running", "paused", "done", "failed", "stopped")
"""States of a rank, by their number in the column; ``stopped``: its process does not run (state T or D)."""
MAX_PHASES = 32
DESCRIPTIVE = ("text", "message", "line", "value", "detail", "pattern")
"""Keys of evidence that describe an alert in words, the best first."""
LOOK_BACK = 20
"""Incidents in which a rank's last error is looked for."""
TIMELINE_MACHINES = 64


def ranks_view(gateway: Gateway, name: str) -> dict[str, Any]:
    """Return all ranks, one list per fact; ranks without a heartbeat of the newest epoch are silent. Blocks.

    Raises:
        UnknownError: no such job.
    """
    job = gateway.site.ledger.job(name)
    spec, size = job.spec, job.spec.world_size
    known: list[RankState | None] = [None] * size
    for _, rank in gateway.site.fleet.ranks(job):
        if 0 <= rank.rank < size:
            known[rank.rank] = rank
    phases, times = _times(known)
    spreads = [phase_times.spread(row) for row in times]
    errors = last_errors(gateway, job)
    return {
        "job": name,
        "epoch": job.epoch,
        "world_size": size,
        "per_machine": spec.ranks_per_machine,
        **_grid(spec),
        "machines": list(job.machines),
        "states": STATES,
        "state": [_state(rank) for rank in known],
        "step": [rank.step if rank else None for rank in known],
        "phases": phases,
        "times": [[None if np.isnan(value) else _short(value) for value in row] for row in times],
        "median": [_short(row.median_s) for row in spreads],
        "worst": [_short(row.worst_s) for row in spreads],
        "outliers": [list(row.outliers) for row in spreads],
        "errors": {rank: text_of(alert)[:200] for rank, (_, alert) in errors.items()},
    }


def _grid(spec: JobSpec) -> dict[str, int]:
    """Return rows, blocks and columns of the map: TP numbered fastest, then DP, then PP; another order is one row."""
    layout = spec.parallelism
    order = [name for name in layout.order.split("-") if name != "ep"]
    if order != ["tp", "cp", "dp", "pp"]:
        return {"tp": 1, "pp": 1, "dp": spec.world_size}
    return {"tp": layout.tp, "pp": layout.pp, "dp": layout.cp * layout.dp(spec.world_size)}


def rank_view(gateway: Gateway, name: str, rank: int) -> dict[str, Any]:
    """Return one rank: its groups, peer, last error and its own report. Blocks.

    Raises:
        UnknownError: no such job or rank.
    """
    job = gateway.site.ledger.job(name)
    spec, size = job.spec, job.spec.world_size
    if not 0 <= rank < size:
        raise UnknownError(f"job {name} has no rank {rank}: it has {size}")
    found = next((state for _, state in gateway.site.fleet.ranks(job) if state.rank == rank), None)
    slot = rank // spec.ranks_per_machine
    machine = job.machines[slot] if slot < len(job.machines) else None
    keeps = _peers_of(gateway, job) if spec.checkpoint.peer else {}
    run = gateway.site.fleet.run_of(job, machine) if machine else None
    error = last_errors(gateway, job).get(rank)
    return {
        "rank": rank,
        "machine": machine,
        "epoch": job.epoch,
        "place": place_of(rank, size, spec.parallelism).model_dump(exclude_defaults=True),
        "groups": [group.model_dump() for group in groups_of(rank, size, spec.parallelism)],
        "peer": _named(job, keeps.get(slot)),
        "keeps_copy_of": _named(job, next((own for own, peer in keeps.items() if peer == slot), None)),
        "replicated_step": run.replicated_step if run else None,
        "state": STATES[_state(found)],
        "now": found.model_dump(mode="json") if found else None,
        "error": _error(*error) if error else None,
    }


def steps_view(gateway: Gateway, name: str) -> dict[str, Any]:
    """Return each machine's newest steps by phase; of many machines those with the slowest newest step. Blocks.

    Raises:
        UnknownError: no such job.
    """
    job = gateway.site.ledger.job(name)
    known = gateway.step_times.of(name)
    if known is None or known.epoch != job.epoch:
        return {"epoch": job.epoch, "phases": [], "machines": [], "left_out": 0}
    rows = {
        machine: list(steps) for machine, steps in list(known.machines.items()) if machine in job.machines
    }
    slowest = sorted(rows, key=lambda machine: -max((one.s for one in rows[machine]), default=0.0))
    shown = set(slowest[:TIMELINE_MACHINES])
    return {
        "epoch": job.epoch,
        "phases": list(known.names),
        "machines": [
            {
                "machine": machine,
                "rank": job.ranks_of(machine)[0],
                "steps": [
                    [one.step, round(one.at, 4), _short(one.s), [_short(s) for s in one.phases]]
                    for one in rows[machine]
                ],
            }
            for machine in job.machines
            if machine in shown
        ],
        "left_out": len(rows) - len(shown),
    }


def last_errors(gateway: Gateway, job: Job) -> dict[int, tuple[Incident, Alert]]:
    """Return by rank the newest alert about it since the job was submitted, with its incident."""
    found: dict[int, tuple[Incident, Alert]] = {}
    for incident in gateway.site.ledger.incidents(job=job.name, limit=LOOK_BACK):
        if incident.opened_at < job.submitted_at:
            break
        for alert in incident.alerts:
            if alert.rank is None or alert.evidence.get("cascade"):
                continue  # a rank that only lost its peer has no error of its own
            if alert.rank not in found:
                found[alert.rank] = (incident, alert)
    return found


def text_of(alert: Alert) -> str:
    """Describe an alert in one line."""
    evidence = alert.evidence
    if evidence.get("error_type"):
        return f"{evidence['error_type']}: {evidence.get('message', '')}"
    if evidence.get("signal"):
        return f"{alert.kind.value}: {evidence['signal']}"
    text = next((evidence[key] for key in DESCRIPTIVE if evidence.get(key)), "")
    return f"{alert.kind.value}: {text}" if text else alert.kind.value


def _peers_of(gateway: Gateway, job: Job) -> dict[int, int]:
    known, policy = gateway.site.fleet.machines, gateway.site.policy
    where = [
        topology.locate(name, known[name].location if name in known else {}, policy) for name in job.machines
    ]
    domains = tuple(tuple(sorted(each.items())) for each in where)
    return peers(job.spec.machines, job.spec.ranks_per_machine, job.spec.parallelism, domains)


@lru_cache(maxsize=32)
def peers(
    machines: int,
    per_machine: int,
    parallelism: Parallelism,
    domains: tuple[tuple[tuple[str, str], ...], ...] = (),
) -> dict[int, int]:
    """Map each machine slot to the slot that keeps its copy; ``domains`` are the location of each, as pairs."""
    where = [dict(each) for each in domains] if len(domains) == machines else []
    return placement.backups(machines, per_machine, parallelism, where).mapping


def _times(known: Sequence[RankState | None]) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
    """Return the names of the phases, the whole step first, and for each the seconds by rank (NaN: not reported)."""
    names: list[str] = []
    for rank in known:
        for name in rank.phases if rank else ():
            if name not in names and len(names) < MAX_PHASES:
                names.append(name)
    whole = np.array([rank.step_s if rank and rank.step_s else np.nan for rank in known], dtype=float)
    parts = [
        np.array([rank.phases.get(name, np.nan) if rank else np.nan for rank in known], dtype=float)
        for name in names
    ]
    return ["step", *names], [whole, *parts]


def _state(rank: RankState | None) -> int:
    if rank is None:
        return 0
    if rank.phase is RankPhase.EXITED:
        return 4 if rank.exit_code == 0 else 5
    if rank.process_state[:1] in ("T", "D"):
        return 6
    if rank.paused:
        return 3
    return 2 if rank.phase is RankPhase.RUNNING else 1


def _named(job: Job, slot: int | None) -> str | None:
    return job.machines[slot] if slot is not None and slot < len(job.machines) else None


def _error(incident: Incident, alert: Alert) -> dict[str, Any]:
    evidence = alert.evidence
    return {
        "incident": incident.id,
        "kind": alert.kind.value,
        "epoch": alert.epoch,
        "at": alert.at,
        "text": text_of(alert)[:2000],
        "traceback": str(evidence.get("traceback") or "")[-8000:],
        "log_tail": str(evidence.get("log_tail") or "")[-4000:],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
