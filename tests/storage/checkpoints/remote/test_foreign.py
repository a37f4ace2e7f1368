"""Checkpoints of other jobs and other programs in S3, read for the first state of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

from holdfast.errors import CheckpointError
from holdfast.models.start_from import StartFrom
from holdfast.session import start_from as subject
from holdfast.session.start_from import start_from
from holdfast.storage.objects.s3 import S3Store
from tests.storage.checkpoints.upload import upload

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]


def saved(folder: Path) -> dict[str, Any]:
    """A model that stock torch saved."""
    model = nn.Linear(300, 70)
    dcp.save({"model": model.state_dict(), "epoch": 3}, checkpoint_id=folder, no_dist=True)
    return {"model": model}


@pytest.mark.parametrize("where", ["foreign", "job"])
def test_it_is_read_from_s3(
    where: str, objects: S3Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a foreign prefix without manifest or digests, and of a job, whose digests are verified."""
    there, here = saved(tmp_path / "ckpt"), {"model": nn.Linear(300, 70)}
    monkeypatch.setattr(subject.objects, "connect", lambda given: objects)
    if where == "job":
        made = upload(objects, tmp_path / "ckpt", job="llama", step=7, epoch=2)
        source: dict[str, Any] = {"job": "llama", "step": made.step, "epoch": made.epoch}
    else:
        for file in (tmp_path / "ckpt").iterdir():
            objects.put(f"theirs/step-7/{file.name}", file.read_bytes())
        source = {"path": "s3://elsewhere/theirs/step-7"}
    chosen = StartFrom.model_validate({**source, "parts": ["model"]})
    found = start_from(chosen, here, 0, {})
    assert torch.equal(here["model"].weight, there["model"].weight)
    assert found.cost["tier"] == "s3"


def test_what_is_not_in_s3_is_named(
    objects: S3Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A prefix without a checkpoint, and a checkpoint without one of its files."""
    monkeypatch.setattr(subject.objects, "connect", lambda given: objects)
    here = saved(tmp_path / "ckpt")
    source = StartFrom(path="s3://elsewhere/nothing", parts={"model": "model"})
    with pytest.raises(CheckpointError, match=r"s3://elsewhere/nothing: .*\.metadata"):
        start_from(source, here, 0, {})
    objects.put("nothing/.metadata", (tmp_path / "ckpt" / ".metadata").read_bytes())
    with pytest.raises(CheckpointError, match=r"s3://elsewhere/nothing: __0_0.distcp is missing"):
        start_from(source, here, 0, {})
    content = (tmp_path / "ckpt" / "__0_0.distcp").read_bytes()
    objects.put("nothing/__0_0.distcp", content[:-50_000])
    with pytest.raises(
        CheckpointError, match=rf"__0_0.distcp has {len(content) - 50_000} bytes, and model\."
    ):
        start_from(source, here, 0, {})
