"""Send what a scenario's signals describe to a gateway: alerts, heartbeats, and what people and machines do."""

from __future__ import annotations

from typing import Any

from holdfast.models.agent import RankPhase, RankState
from holdfast.models.alert import Alert, AlertKind
from holdfast.models.job import Job
from holdfast.tasks.standby_checks import Inspection, check_standbys, remove_unfit
from holdfast.testing.gateway_kit import JOB, Kit
from holdfast.testing.scenario import Beats, Signal

OF_RANKS = (
    "rank_exit",
    "rank_log",
    "hang",
    "non_finite",
    "metric_jump",
    "replica_differs",
    "throughput_decline",
    "mfu_decline",
    "straggler",
    "unrestorable",
)


async def send(kit: Kit, signal: Signal, job: Job) -> list[str]:
    """Have what ``signal`` describes happen; return the gateway's answers.

    Args:
        kit: the gateway.
        signal: a signal, heartbeats, or what a machine or person does.
        job: the job as it was before the first signal.
    """
    if signal.beats:
        await _beats(kit, signal.beats, job)
        return []
    if signal.registers:
        await kit.register(signal.registers, signal.incarnation)
    if signal.inspects_standbys:
        await remove_unfit(await check_standbys(Inspection()))
    if signal.updates_to:
        kit.ledger.add_version(JOB, signal.updates_to, "key", "shipped")
        kit.ledger.set_pending_version(JOB, signal.updates_to)
    for name, state in signal.machine_states.items():
        kit.ledger.set_machine(name, state=state, job=None)
    if signal.job_state:
        kit.ledger.set_job(JOB, state=signal.job_state)
    if signal.approves:
        answer = {"approve": True, "by": "ann"}
        await kit.http.post(f"/v1/incidents/{kit.incidents()[-1].id}/approve", json=answer)
        await kit.settled()
    if signal.request:
        return [await _request(kit, signal)]
    if not signal.kind and signal.alertmanager is None:
        return []
    if signal.alertmanager is not None:
        return [await _webhook(kit, signal.alertmanager) for _ in range(signal.times)]
    return [await _alert(kit, signal, job) for _ in range(signal.times)]


async def _request(kit: Kit, signal: Signal) -> str:
    answer = await kit.http.post(f"/v1/{signal.request}", json=signal.body)
    await kit.settled()
    body = answer.json()
    return str(body.get("outcome") or body.get("state") or body.get("error"))


async def _alert(kit: Kit, signal: Signal, job: Job) -> str:
    of_rank = signal.kind in OF_RANKS
    machine = signal.machine
    if machine is None and signal.rank is not None and signal.rank < job.spec.world_size:
        machine = job.machine_of(signal.rank)
    incarnation = (signal.incarnation or None) if machine else None
    alert = Alert(
        kind=AlertKind(signal.kind),
        job=signal.job,
        machine=machine,
        rank=signal.rank,
        epoch=signal.epoch if signal.epoch is not None else job.epoch if of_rank else None,
        incarnation=incarnation,
        at=kit.clock.now() - signal.age_s,
        firing=signal.firing,
        fingerprint=signal.fingerprint,
        evidence=signal.evidence,
    )
    answer = await kit.http.post("/v1/alerts", json=alert.model_dump(mode="json"))
    await kit.settled()
    body = answer.json()
    return str(body.get("outcome") or body.get("error"))


async def _webhook(kit: Kit, labels: dict[str, Any]) -> str:
    status = labels.get("status", "firing")
    sent = {
        "status": status,
        "labels": {k: str(v) for k, v in labels.items() if k != "status"},
        "fingerprint": "f1",
    }
    answer = await kit.post("/v1/alerts/alertmanager", {"version": "4", "status": "firing", "alerts": [sent]})
    await kit.settled()
    (result,) = answer["results"]
    return str(result.get("outcome") or result.get("error"))


async def _beats(kit: Kit, beats: Beats, job: Job) -> None:
    """Send each machine's heartbeat every half second (more in long stretches), and run the hang detector each time."""
    step_at, began = kit.clock.now() - beats.silent_from, kit.clock.now()
    every_s = 0.5 if beats.for_s < 60 else 2.0 if beats.for_s < 900 else 10.0
    while kit.clock.now() - began < beats.for_s:
        kit.clock.advance(every_s)
        step_at = kit.clock.now() if beats.moves else step_at
        for name in job.machines:
            ranks = [_rank(beats, rank, step_at, kit.clock.now() - began) for rank in job.ranks_of(name)]
            await kit.beat(name, ranks, epoch=job.epoch, vitals=beats.vitals)
        await kit.gateway.hangs.tick()
    await kit.settled()


def _rank(beats: Beats, rank: int, step_at: float, passed: float) -> RankState:
    idle, ended = beats.idle and rank not in beats.busy, rank in beats.ended
    return RankState(
        rank=rank,
        pid=100 + rank,
        phase=RankPhase.EXITED if ended else RankPhase.RUNNING,
        exit_code=0 if ended else None,
        step=beats.steps_done,
        steps_done=beats.steps_done,
        step_at=step_at,
        activity=beats.activity,
        step_s=beats.step_s if beats.steps_done else 0.0,
        cpu_s=0.0 if idle else passed,
        process_state="T" if rank in beats.stopped else beats.process_state,
        paused=beats.paused,
    )
