"""A job that was never run, of any size: in the ledger and in heartbeats, with things that stand out."""

from __future__ import annotations

import random
from collections.abc import Sequence

from holdfast.models.agent import Heartbeat, JobOnMachine, RankPhase, RankState, Register, StepTimes
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState, Parallelism
from holdfast.testing.gateway_kit import JOB, Kit, start_epoch

PHASES = {"data": 0.05, "forward": 0.35, "backward": 0.7, "optimizer": 0.12, "checkpoint": 0.03}
SLOW = 3
"""Machine of the job whose ranks are slow in the backward pass."""


async def big_job(kit: Kit, machines: int = 16, ranks: int = 8, tp: int = 8, pp: int = 4) -> None:
    """A running job of ``machines`` x ``ranks`` with a past of two incidents, and a few standbys."""
    names = [f"m{number}" for number in range(machines + 4)]
    for name in names:
        kit.ledger.register(
            Register(machine=name, incarnation="i1", address=f"{name}:1", data_address=f"{name}:2", pid=1)
        )
    spec = JobSpec(
        name=JOB,
        script="train.py",
        machines=machines,
        ranks_per_machine=ranks,
        parallelism=Parallelism(tp=tp, pp=pp),
        skip_bad_batches=4,
    )
    kit.ledger.add_job(spec, "v1")
    kit.ledger.add_version(JOB, "v1", "key", "first")
    claimed = [machine.name for machine in kit.ledger.claim_standbys(JOB, machines)]
    kit.ledger.set_job(JOB, machines=claimed, state=JobState.RUNNING)
    step = 0
    for culprit in (1, 2, None):
        epoch = start_epoch(kit.ledger, JOB)
        for _ in range(8):
            kit.clock.advance(120.0)
            step += 100
            kit.ledger.mark(JOB, epoch, step, kit.clock.now(), 100, kit.clock.now() - 120.0)
        if culprit is not None:
            _incident(kit, epoch, claimed[culprit], culprit * ranks)
            kit.clock.advance(70.0)
    await kit.gateway.site.refresh()
    await beats(kit, claimed, ranks, step)


def _incident(kit: Kit, epoch: int, machine: str, rank: int) -> None:
    now = kit.clock.now()
    alert = Alert(
        kind=AlertKind.RANK_EXIT,
        job=JOB,
        machine=machine,
        rank=rank,
        epoch=epoch,
        incarnation="i1",
        at=now,
        evidence={
            "error_type": "RuntimeError",
            "message": "CUDA error: an illegal memory access was encountered",
            "traceback": 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>',
            "exit_code": 1,
        },
    )
    found = Classification(
        incident_class=IncidentClass.JOB_CRASH,
        confidence=0.6,
        machine=machine,
        rank=rank,
        reasons=("it ended",),
    )
    incident = kit.ledger.open_incident(JOB, found, epoch, [alert], now)
    kit.ledger.record_alert(alert, incident.id, "opened")
    for key, took in (("pause", 0.4), (f"evict:{machine}", 3.0), ("start:e2", 6.0), ("verify:e2", 40.0)):
        kit.ledger.begin(incident.id, 1, key, key.partition(":")[0], {})
        kit.clock.advance(took)
        kit.ledger.finish(incident.id, key, {"machine": machine})
    kit.ledger.begin(incident.id, 1, f"skip:e{epoch}", "skip", {"step": 35 * epoch})
    kit.ledger.finish(incident.id, f"skip:e{epoch}", {"step": 35 * epoch})
    kit.ledger.set_incident(
        incident.id,
        state=IncidentState.RECOVERED,
        recovered_at=kit.clock.now() + 60.0,
        summary=f"swapped {machine} for a standby",
    )


async def beats(kit: Kit, machines: Sequence[str], ranks: int, step: int) -> None:
    """One heartbeat of every machine, with times by phase."""
    noise, now = random.Random(7), kit.clock.now()
    for slot, name in enumerate(machines):
        factor = 1.8 if slot == SLOW else 1.0
        states = []
        for local in range(ranks):
            phases = {key: value * noise.uniform(0.97, 1.03) for key, value in PHASES.items()}
            phases["backward"] *= factor
            states.append(
                RankState(
                    rank=slot * ranks + local,
                    pid=1000 + local,
                    phase=RankPhase.RUNNING,
                    step=step,
                    steps_done=step,
                    step_at=now,
                    step_s=sum(phases.values()),
                    phases=phases,
                    loss=2.5,
                    cpu_s=9.0,
                    process_state="S",
                )
            )
        times = tuple(
            StepTimes(step=step - back, at=now - 1.3 * back, s=1.28, phases=states[0].phases)
            for back in range(7, -1, -1)
        )
        run = JobOnMachine(
            job=JOB, epoch=kit.ledger.job(JOB).epoch, ranks=tuple(states), times=times, replicated_step=step
        )
        beat = Heartbeat(machine=name, incarnation="i1", at=now, jobs=(run,))
        kit.gateway.site.fleet.observe(beat, now)
        kit.gateway.step_times.observe(beat, kit.gateway.site.fleet.jobs, now)
