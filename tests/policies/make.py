"""Small builders for the policies' tests."""

from __future__ import annotations

from typing import Any

from holdfast.models.alert import Alert, AlertKind
from holdfast.models.history import Epoch
from holdfast.models.job import Job, JobSpec, JobState, Parallelism

NOW = 1_000.0


def job(
    machines: int = 4,
    per: int = 2,
    tp: int = 1,
    pp: int = 1,
    *,
    state: JobState = JobState.RUNNING,
    epoch: int = 3,
    order: str = "tp-cp-ep-dp-pp",
) -> Job:
    spec = JobSpec(
        name="gpt",
        script="train.py",
        machines=machines,
        ranks_per_machine=per,
        parallelism=Parallelism(tp=tp, pp=pp, order=order),
    )
    names = tuple(f"m{slot}" for slot in range(machines))
    return Job(spec=spec, state=state, epoch=epoch, code_version="v2", machines=names, submitted_at=0.0)


def alert(kind: AlertKind, **changes: Any) -> Alert:
    facts: dict[str, Any] = {"job": "gpt", "epoch": 3, "at": NOW, **changes}
    return Alert(kind=kind, **facts)


def rank_exit(rank: int, at: float = NOW, **evidence: Any) -> Alert:
    return alert(
        AlertKind.RANK_EXIT, rank=rank, machine=f"m{rank // 2}", at=at, evidence={"exit_code": 1, **evidence}
    )


def epoch(
    number: int, opened_at: float, first: tuple[int, float] | None, last: tuple[int, float] | None
) -> Epoch:
    """An epoch; ``first`` and ``last`` are (step, time)."""
    return Epoch(
        job="gpt",
        epoch=number,
        start_step=(first[0] - 1) if first else 0,
        code_version="v1",
        machines=("m0",),
        reason="test",
        opened_at=opened_at,
        first_step=first[0] if first else None,
        first_step_at=first[1] if first else None,
        last_step=last[0] if last else None,
        last_step_at=last[1] if last else None,
    )
