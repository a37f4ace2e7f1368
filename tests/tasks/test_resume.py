"""A checkpoint that ranks refused is named by no further plan, whichever process knew of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import LimitError, StaleError
from holdfast.models.agent import AgentState
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.checkpoint import Shard, Tier
from holdfast.models.job import FromScratch, Job, JobSpec
from holdfast.operations import restore as choose
from holdfast.operations.context import Context
from holdfast.operations.launch import Launched
from holdfast.settings import Settings
from holdfast.storage.checkpoints.remote import manifests
from holdfast.storage.objects.s3 import S3Store
from holdfast.tasks import resume
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.testing.play import without_prefect
from tests.storage import servers

WHY = "job 'gpt' step 40 in S3: __0_0.distcp, bytes 0 to 9: damaged"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.moto() as made:
        yield made


@pytest.fixture
def ctx(tmp_path: Path, endpoint: str) -> Iterator[Context]:
    """A job whose second epoch resumes from step 40; the ledger knows of no checkpoint."""
    ctx = Context(Settings(home=tmp_path))
    store = S3Store(endpoint=endpoint, bucket=tmp_path.name.replace("_", "-"), access_key="a", secret_key="k")
    store.ensure_bucket()
    ctx.__dict__["store"] = store
    ctx.ledger.create()
    ctx.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    ctx.ledger.next_epoch("gpt")
    ctx.ledger.open_epoch("gpt", 1, 0, "v1", ["m1", "m2"], "new")
    ctx.ledger.next_epoch("gpt")
    ctx.ledger.open_epoch("gpt", 2, 40, "v1", ["m1", "m2"], "machine fault")
    use(ctx)
    yield ctx
    use(None)


def put(ctx: Context, *steps: int) -> None:
    for step in steps:
        manifest = manifests.Manifest(job="gpt", step=step, epoch=1, world_size=2, saved_at=9.0, nbytes=5)
        key = manifests.checkpoint_key("gpt", step, 1)
        ctx.store.put(f"{key}{manifests.MANIFEST}", manifest.model_dump_json().encode())


def in_memory(*steps: int) -> list[AgentState]:
    """Both machines hold their ranks' shards of the first epoch's ``steps``."""
    return [
        AgentState(
            machine=f"m{rank + 1}",
            incarnation="i",
            shards=tuple(
                Shard(
                    job="gpt",
                    rank=rank,
                    step=step,
                    epoch=1,
                    machine=f"m{rank + 1}",
                    tier=Tier.MEMORY,
                    nbytes=1,
                    digest="d",
                )
                for step in steps
            ),
        )
        for rank in range(2)
    ]


async def planned(ctx: Context) -> int:
    job: Job = ctx.ledger.set_job("gpt", machines=("m1", "m2"))
    return (await choose.plan(choose.Search(ctx, job, []))).step


@pytest.mark.parametrize("known", [True, False], ids=["in the ledger", "in the bucket only"])
async def test_the_next_plan_takes_the_next_older_step(ctx: Context, known: bool) -> None:
    """Marked in the ledger and in S3; a playbook that was killed after the marking does it again."""
    put(ctx, 20, 40)
    if known:
        for checkpoint in manifests.list_remote(ctx.store, "gpt"):
            ctx.ledger.record_checkpoint(checkpoint)
    assert await planned(ctx) == 40
    for _ in range(2):
        await choose.give_up_state(ctx, "gpt", 40, f"refused: {WHY}")
    assert await planned(ctx) == 20
    marked = {
        each.step: each.suspect_reason for each in manifests.list_remote(ctx.store, "gpt") if each.suspect
    }
    assert marked == {40: f"refused: {WHY}"}


async def test_a_run_that_was_replaced_marks_nothing(ctx: Context) -> None:
    """It slept, and another run acts on the job: the newer one's states are no business of the older one."""
    put(ctx, 20, 40)
    found = Classification(incident_class=IncidentClass.NAN_LOSS, confidence=1, reasons=("x",))
    incident = ctx.ledger.open_incident("gpt", found, 2, [], 1.0)
    ctx.ledger.take_job(incident.id, 1, "run 1", "run 1", 60.0)
    mine = ctx.ledger.holding(incident.id, "gpt", "run 1")
    ctx.ledger.next_attempt(incident.id, 1)
    ctx.ledger.take_job(incident.id, 2, "run 2", "run 2", 60.0)
    with pytest.raises(StaleError):
        await choose.give_up_state(ctx, "gpt", 40, f"refused: {WHY}", mine)
    assert await planned(ctx) == 40
    assert ctx.ledger.suspicions("gpt") == []


async def test_a_marking_that_was_cut_short_is_completed(ctx: Context) -> None:
    """The ledger has it, S3 does not have it yet: a reader of S3 finds it after the next attempt."""
    put(ctx, 40)
    (checkpoint,) = manifests.list_remote(ctx.store, "gpt")
    ctx.ledger.record_checkpoint(checkpoint)
    ctx.ledger.refuse_checkpoint(checkpoint, "refused: first")
    await choose.give_up_state(ctx, "gpt", 40, f"refused: {WHY}")
    assert manifests.latest(ctx.store, "gpt") is None


async def test_what_lies_in_memory_alone_is_given_up_as_well(ctx: Context) -> None:
    """S3 has no checkpoint of that step: its shards on machines are named by no further plan."""
    put(ctx, 20)
    job = ctx.ledger.set_job("gpt", machines=("m1", "m2"))
    held = in_memory(30, 40)
    for _ in range(2):
        assert await choose.give_up_state(ctx, "gpt", 40, f"refused: {WHY}") == []
    made = await choose.plan(choose.Search(ctx, job, held))
    assert (made.step, made.tier) == (30, Tier.MEMORY)
    assert "refused: step 40 is suspect" in made.reasons


async def test_a_bound_on_suspicion_is_no_reason_to_start_from_zero(ctx: Context) -> None:
    """Whatever the job allows where its states are lost: this one has a state of step 40."""
    job = ctx.ledger.set_job("gpt", machines=("m1", "m2"))
    allows = job.spec.checkpoint.model_copy(update={"from_scratch": FromScratch.ALLOW})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": allows})})
    held = in_memory(40)
    made = await choose.plan(choose.Search(ctx, job, held, bound=37))
    assert (made.step, made.tier) == (0, None)
    with pytest.raises(LimitError, match="no saved step is usable"):
        await choose.plan(choose.Search(ctx, job, held, bound=37, from_scratch=FromScratch.NEVER))


async def test_without_a_state_from_before_a_jump_it_goes_on_from_what_there_is(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a start from before the jump is tried, and never one from zero. The summary has the doubt."""
    jump = Alert(kind=AlertKind.METRIC_JUMP, job="gpt", epoch=2, at=1.0, evidence={"step": 43})
    found = Classification(
        incident_class=IncidentClass.SILENT_CORRUPTION, confidence=0.9, reasons=("the loss jumped",)
    )
    incident = ctx.ledger.open_incident("gpt", found, 2, [jump], 1.0)
    ctx.ledger.begin(incident.id, 1, "evict:m1", "evict", {})
    ctx.ledger.finish(incident.id, "evict:m1")
    case = RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job="gpt",
        incident_class=IncidentClass.SILENT_CORRUPTION,
        broken_epoch=2,
    ).within(ctx)
    tried: list[tuple[int | None, FromScratch | None]] = []

    async def start(
        case: RecoveryContext, after: int | None = None, from_scratch: FromScratch | None = None
    ) -> Launched:
        tried.append((case.last_good_step, from_scratch))
        if case.last_good_step is not None:
            raise LimitError("no saved step is usable")
        return Launched(epoch=3, step=42, tier=Tier.MEMORY, reasons=())

    async def verify(_case: RecoveryContext, _epoch: int) -> str:
        return ""

    monkeypatch.setattr(resume, "start", start)
    monkeypatch.setattr(resume, "verify", verify)
    with without_prefect():
        launched = await resume.resume(case)
    before = 43 - ctx.policy.detect.metrics.jump_steps
    assert launched.step == 42
    assert f"no state up to step {before} can be had: that of step 42 may" in launched.summary
    assert tried == [(before, FromScratch.NEVER), (None, None)]
