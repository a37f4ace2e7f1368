"""The source that a job starts from: found or refused at submission, kept until the job has a state of its own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from holdfast.cli import jobfile
from holdfast.errors import LimitError, RefusedError, SettingsError
from holdfast.models.checkpoint import RestorePlan, Tier
from holdfast.models.job import JobSpec
from holdfast.models.start_from import StartFrom
from holdfast.operations import start_from
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.checkpoints.remote import claims, manifests
from holdfast.storage.objects.s3 import S3Store
from tests.storage import servers

SCRATCH = RestorePlan(step=0, tier=None)
FILE = {"name": "tuned", "script": "t.py", "machines": 1, "ranks_per_machine": 1}
ITEMS = ("model.w", "optimizer.state.w.exp_avg", "structure/0./parts", "structure/0.loader", "rng/0.torch")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.moto() as made:
        yield made


@pytest.fixture
def ctx(tmp_path: Path, endpoint: str) -> Context:
    """Job llama has steps 20, 40 and 60 in S3, and another job is to start from it."""
    ctx = Context(Settings(home=tmp_path))
    store = S3Store(endpoint=endpoint, bucket=tmp_path.name.replace("_", "-"), access_key="a", secret_key="k")
    store.ensure_bucket()
    ctx.__dict__["store"] = store
    ctx.ledger.create()
    ctx.ledger.add_job(JobSpec(**{**FILE, "name": "llama"}), "v1")  # type: ignore[arg-type]
    ctx.ledger.next_epoch("llama")
    ctx.ledger.open_epoch("llama", 1, 0, "v1", ["m1"], "new")
    for step in (20, 40, 60):
        manifest = manifests.Manifest(job="llama", step=step, epoch=1, world_size=1, saved_at=9.0, nbytes=5)
        key = manifests.checkpoint_key("llama", step, 1)
        store.put(f"{key}{manifests.MANIFEST}", manifest.model_dump_json().encode())
        store.put(f"{key}{manifests.METADATA}", metadata())
    return ctx


def metadata() -> bytes:
    return pickle.dumps(SimpleNamespace(state_dict_metadata=dict.fromkeys(ITEMS)))


def spec(**source: Any) -> JobSpec:
    return JobSpec.model_validate({**FILE, "start_from": source})


async def resolved(ctx: Context, **source: Any) -> StartFrom:
    found = (await start_from.resolve(ctx, spec(**source))).start_from
    assert found is not None
    return found


async def test_the_newest_step_is_fixed_at_submission(ctx: Context) -> None:
    """The newest that may be restored: not a suspect one, and not one that a rollback left behind."""
    assert (await resolved(ctx, job="llama")).step == 60
    ctx.ledger.mark_suspect("llama", 60, "NaN")
    found = await resolved(ctx, job="llama", parts=["model", "loader"])
    assert (found.step, found.epoch) == (40, 1)
    ctx.ledger.next_epoch("llama")
    ctx.ledger.open_epoch("llama", 2, 20, "v1", ["m1"], "rolled back")
    assert (await resolved(ctx, job="llama")).step == 20
    assert (await resolved(ctx, job="llama", step=60)).step == 60  # a person named it


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"job": "gemma"}, "start_from.job = gemma: job gemma has no checkpoint in S3"),
        ({"job": "llama", "step": 30}, r"step = 30: job llama has no such .* it has steps 20, 40, 60"),
        ({"job": "llama", "step": 40, "epoch": 2}, "step = 40 of epoch 2: job llama has no such"),
        (
            {"job": "llama", "parts": ["weights"]},
            "job llama step 60 .*: no part 'weights' there; it has loader, model, opt",
        ),
        ({"path": "/nowhere/ckpt"}, r"start_from.path = /nowhere/ckpt: no checkpoint .* No such file"),
    ],
)
async def test_what_is_not_there_is_refused_by_name(ctx: Context, source: dict[str, Any], named: str) -> None:
    """At submission, before anything is recorded."""
    with pytest.raises(RefusedError, match=named):
        await start_from.resolve(ctx, spec(**source))


async def test_a_store_that_is_not_known_is_refused(ctx: Context) -> None:
    """Before anything is recorded."""
    named = r"start_from\.path = acme://place/step-7: no holdfast\.stores 'acme': expected one of s3"
    with pytest.raises(RefusedError, match=named):
        await resolved(ctx, path="acme://place/step-7")


async def test_a_folder_is_looked_into(ctx: Context, tmp_path: Path) -> None:
    """Where this host sees it; one that only the machines of a cluster see is left to them."""
    (tmp_path / ".metadata").write_bytes(metadata())
    assert (await resolved(ctx, path=str(tmp_path), parts={"net": "model"})).parts == {"net": "model"}
    with pytest.raises(RefusedError, match="no part 'net' there"):
        await resolved(ctx, path=str(tmp_path), parts=["net"])
    (tmp_path / ".metadata").write_bytes(b"nothing")
    with pytest.raises(RefusedError, match=r"its \.metadata cannot be read"):
        await resolved(ctx, path=str(tmp_path), parts=["net"])
    ctx.settings = ctx.settings.model_copy(update={"driver": "slurm"})
    assert (await resolved(ctx, path="/lustre/ckpt", parts=["net"])).path == "/lustre/ckpt"


@pytest.mark.filterwarnings("ignore:.*assuming the intent")
async def test_a_file_that_is_missing_or_cut_off_is_refused(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder and in S3, at submission; what lies behind the parts that are taken does not count."""
    folder = tmp_path / "theirs"
    dcp.save({"model": {"w": torch.ones(999)}, "epoch": 3}, checkpoint_id=folder, no_dist=True)
    (file,) = folder.glob("*.distcp")
    content = file.read_bytes()
    url = f"s3://{ctx.store.bucket}/theirs"
    monkeypatch.setattr(objects, "from_settings", lambda *_: ctx.store)
    ctx.store.put("theirs/.metadata", (folder / ".metadata").read_bytes())
    for kept, named in (
        (None, "names __0_0.distcp, which is not there"),
        (content[:-9], "__0_0.distcp was cut off"),
    ):
        file.unlink(missing_ok=True)
        if kept is not None:
            file.write_bytes(kept)
            ctx.store.put(f"theirs/{file.name}", kept)
        for path in (str(folder), url):
            with pytest.raises(RefusedError, match=named):
                await resolved(ctx, path=path)
            if kept is not None:
                assert await resolved(ctx, path=path, parts=["epoch"])
    file.write_bytes(content)
    ctx.store.put(f"theirs/{file.name}", content)
    for path in (str(folder), url):
        assert await resolved(ctx, path=path, parts=["model"])


async def test_it_applies_only_without_a_state_and_is_claimed(ctx: Context) -> None:
    """Each start without a state of its own claims the checkpoint; the end of the job gives it back."""
    job = ctx.ledger.add_job(await start_from.resolve(ctx, spec(job="llama", parts=["model"])), "v1")
    plan = await start_from.begun(ctx, job, SCRATCH)
    assert (plan.step, plan.tier, plan.start_from) == (0, None, job.spec.start_from)
    assert plan.reasons[-1] == "starts from job llama step 60 (model)"
    key = manifests.checkpoint_key("llama", 60, 1)
    objects = [each.key for each in ctx.store.list("")]
    assert claims.claimed(ctx.store, [key], objects) == ({key}, [])
    own = RestorePlan(step=3, tier=Tier.MEMORY)
    assert await start_from.begun(ctx, job, own) == own
    await start_from.give_back(ctx, job)
    assert claims.claimed(ctx.store, [key], [each.key for each in ctx.store.list("")]) == (set(), [])
    ctx.store.delete(f"{key}{manifests.MANIFEST}")
    with pytest.raises(LimitError, match=r"llama step 60 .* is not in S3 any more"):
        await start_from.begun(ctx, job, SCRATCH)


async def test_a_whole_state_counts_on_and_is_not_its_own(ctx: Context) -> None:
    """Steps go on from the source; to have restored that is no reason to believe that a state of this job was lost."""
    job = ctx.ledger.add_job(await start_from.resolve(ctx, spec(job="llama")), "v1")
    plan = await start_from.begun(ctx, job, SCRATCH)
    assert plan.step == 60
    ctx.ledger.next_epoch("tuned")
    ctx.ledger.open_epoch("tuned", 1, plan.step, "v1", ["m1"], "new")
    assert not ctx.ledger.ever_saved("tuned")
    ctx.ledger.next_epoch("tuned")
    ctx.ledger.open_epoch("tuned", 2, plan.step + 1, "v1", ["m1"], "a fault")
    assert ctx.ledger.ever_saved("tuned")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({}, "expected one of job and path"),
        ({"job": "llama", "path": "/ckpt"}, "expected one of job and path"),
        ({"job": "tuned"}, "it is this job itself"),
        ({"job": "llama", "step": 0}, "0: expected a step that was saved, 1 or later, or newest"),
        ({"path": "ckpt/step-100"}, "'ckpt/step-100': expected an absolute folder"),
        ({"path": "s3://bucket"}, "'s3://bucket': expected an absolute folder"),
        ({"path": "/ckpt", "step": 3}, "a path is one checkpoint"),
        ({"job": "llama", "parts": []}, "it names no part"),
        ({"job": "llama", "parts": {"model": "ema", "ema": "ema"}}, "two parts have the same source"),
    ],
)
def test_a_job_file_with_a_mistake_is_refused(source: dict[str, Any], named: str) -> None:
    """With one error that states what was expected."""
    with pytest.raises(SettingsError, match=named):
        jobfile.parse({**FILE, "start_from": source}, "job.yaml")


def test_the_source_has_a_title() -> None:
    """As `holdfast submit` prints it."""
    assert spec(job="llama", step=9).start_from.title == "job llama step 9"  # type: ignore[union-attr]
    renamed = spec(path="s3://b/ckpt", parts={"model": "app.model", "loader": "loader", "ema": ""})
    assert renamed.start_from.title == "s3://b/ckpt (model = app.model, loader, ema = .)"  # type: ignore[union-attr]
