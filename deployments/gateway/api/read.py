"""Routes that only read: status and listings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from holdfast import redact
from holdfast.deployments.gateway.api.approvals import question
from holdfast.deployments.gateway.detectors.rehearsals import of_job, unsaved_of
from holdfast.deployments.gateway.fleet import times
from holdfast.deployments.gateway.fleet.view import OUT_OF_SERVICE
from holdfast.deployments.gateway.gateway import Gateway
from holdfast.models.alert import MOST_LISTED, Incident, IncidentState
from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.classes import IncidentClass
from holdfast.models.history import Pool
from holdfast.models.job import Job
from holdfast.models.machine import Machine, MachineState
from holdfast.models.names import IncidentId, JobName, MachineName
from holdfast.models.repair import Repair, RepairState
from holdfast.policies.restore import checkpoint_cost

Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
ClassFilter = Annotated[IncidentClass | None, Query(alias="class")]


def routes(gateway: Gateway) -> APIRouter:
    """Return the routes, for this gateway."""
    router = APIRouter(prefix="/v1")
    ledger = gateway.site.ledger

    @router.get("/status")
    def status() -> dict[str, Any]:
        incidents, reached = ledger.incidents(state=IncidentState.OPEN), ledger.max_steps()
        away = gateway.dispatcher.prefect_away_since
        return {
            "jobs": [_job(gateway, job, reached.get(job.name, 0)) for job in ledger.jobs()],
            "machines": [
                machine.model_dump(mode="json") | {"late_s": gateway.site.late_s(machine)}
                for machine in ledger.machines()
            ],
            "incidents": [incident.model_dump(mode="json") for incident in incidents],
            "repairs": [_repair(each) for each in ledger.repairs(state=RepairState.OPEN)],
            "asks": [
                ask for each in incidents if (ask := question(each, ledger.actions(each.id, "approve")))
            ],
            "waits": [wait.model_dump(mode="json") for wait in ledger.waits()],
            "pool": _pool(gateway),
            "prefect": {
                "api": redact.link(gateway.site.settings.prefect_api),
                "up": away is None,
                "away_since": away,
                "lacks": gateway.dispatcher.lacks,
            },
        }

    @router.get("/jobs")
    def jobs() -> list[Job]:
        return ledger.jobs()

    @router.get("/jobs/{name}")
    def job(name: JobName) -> Job:
        return ledger.job(name)

    @router.get("/jobs/{name}/history")
    def history(name: JobName) -> dict[str, Any]:
        found = ledger.job(name)
        return {
            "job": found.model_dump(mode="json"),
            "status": _job(gateway, found, ledger.max_step(name)),
            "epochs": [epoch.model_dump(mode="json") for epoch in ledger.epochs(name)],
            "versions": [version.model_dump(mode="json") for version in ledger.versions(name)],
            "pending_version": ledger.pending_version(name),
        }

    @router.get("/jobs/{name}/time")
    def time(name: JobName) -> dict[str, Any]:
        return times.of(gateway.site, ledger.job(name))

    @router.get("/machines")
    def machines() -> list[Machine]:
        return ledger.machines()

    @router.get("/targets")
    def targets() -> list[dict[str, Any]]:
        """List the agents in service, for Prometheus' HTTP service discovery.

        https://prometheus.io/docs/prometheus/latest/http_sd/
        """
        return [
            {
                "targets": [machine.address],
                "labels": {"machine": machine.name, "incarnation": machine.incarnation},
            }
            for machine in list(gateway.site.fleet.machines.values())
            if machine.address and machine.state not in OUT_OF_SERVICE
        ]

    @router.get("/incidents")
    def incidents(
        job: JobName | None = None,
        state: IncidentState | None = None,
        class_: ClassFilter = None,
        machine: MachineName | None = None,
        limit: Limit = 100,
    ) -> list[Incident]:
        if job is not None:
            ledger.job(job)
        return ledger.incidents(job, state, limit, incident_class=class_, machine=machine)

    @router.get("/incidents/{incident_id}")
    def incident(incident_id: IncidentId) -> dict[str, Any]:
        found, actions = ledger.incident(incident_id), ledger.actions(incident_id)
        return {
            "incident": found.model_dump(mode="json"),
            "ask": question(found, actions),
            "actions": [action.model_dump(mode="json") for action in actions],
            "alerts": [alert.model_dump(mode="json") for alert in ledger.alerts(incident_id)],
            "repairs": [_repair(each) for each in ledger.repairs(incident_id=incident_id)],
            "wait": next(
                (each.model_dump(mode="json") for each in ledger.waits() if each.incident_id == incident_id),
                None,
            ),
        }

    @router.get("/pool")
    def pool() -> dict[str, Any]:
        from holdfast.operations.pool_plans import plans  # noqa: PLC0415  (scipy: only who asks pays for it)

        policy, now = gateway.site.policy.spare_pool, gateway.site.clock.now()
        listed = [plan.model_dump(mode="json") for plan in plans(ledger, policy, now)]
        return _pool(gateway) | {"plans": listed, "policy": policy.model_dump(mode="json")}

    @router.get("/checkpoints")
    def checkpoints(job: JobName) -> list[RemoteCheckpoint]:
        ledger.job(job)
        return ledger.checkpoints(job)

    return router


def _repair(repair: Repair) -> dict[str, Any]:
    return repair.model_dump(mode="json", exclude={"holder"}) | {"told": repair.summary}


def _job(gateway: Gateway, job: Job, reached: int) -> dict[str, Any]:
    """Return one job of the status. Ranks as the newest heartbeats have them; ``reached``: its step in the ledger."""
    site = gateway.site
    time = times.of(site, job)
    ranks = [
        {"rank": rank.rank, "machine": machine, "pid": rank.pid, "step": rank.step, "phase": rank.phase.value}
        for machine, rank in site.fleet.ranks(job)
    ]
    return {
        "name": job.name,
        "state": job.state.value,
        "epoch": job.epoch,
        "step": max([reached, *(int(rank["step"]) for rank in ranks)]),
        **time,
        "code_version": job.code_version,
        "machines": list(job.machines),
        "world_size": job.spec.world_size,
        "submitted_at": job.submitted_at,
        "done_at": job.done_at,
        "ranks": ranks,
        "roles": gateway.roles.view(job),
        "kept_signals": gateway.on_hold.describe(job.name),
        "skipped_steps": site.skipped_steps(job),
        "checkpoint": _checkpoint_cost(gateway, job),
        "restore": of_job(site, job).model_dump(mode="json"),
        "unsaved": [each.model_dump(mode="json") for each in unsaved_of(site, job)],
    }


def _checkpoint_cost(gateway: Gateway, job: Job) -> dict[str, Any]:
    """Return the cost of the job's checkpoints on each machine; in bytes once ranks have saved."""
    nbytes = max((run.shard_nbytes for _, run in gateway.site.fleet.runs(job)), default=0)
    return checkpoint_cost.cost(job.spec, crosses_groups=False, rank_nbytes=nbytes or None).sums()


def _pool(gateway: Gateway) -> dict[str, Any]:
    ledger = gateway.site.ledger
    pool: Pool = ledger.pool()
    machines = ledger.machines()
    return pool.model_dump(mode="json") | {
        "standbys": [known.name for known in machines if known.state is MachineState.STANDBY],
        "provisioning": [known.name for known in machines if known.state is MachineState.PROVISIONING],
    }
