"""A job starts from another one's checkpoint, and from one of stock torch: at other sizes, under other layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

from holdfast.models.start_from import StartFrom
from tests.e2e.site import Site
from tests.e2e.waiting import wait_for

HERE = Path(__file__).parent


def train(site: Site, name: str, notes: Path, kind: str, *args: str, **more: Any) -> None:
    notes.mkdir()
    given = ("--kind", kind, "--notes", str(notes), *args)
    chosen = {"spare": 0, "steps": 20, "first": 0, "s3_every": 10, **more}
    site.submit(name, *given, code_dir=HERE, script="start_from_train.py", **chosen)


def begun_from(notes: Path, epoch: int) -> dict[str, torch.Tensor]:
    """The weights with which an epoch began, at step 0 and with a new optimizer."""
    file = notes / f"e{epoch}-step0-cold.pt"
    wait_for(lambda: f"{file.name}: there is {sorted(each.name for each in notes.iterdir())}", file.exists)
    found: dict[str, torch.Tensor] = torch.load(file)
    return found


def require_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, each in left.items():
        assert torch.equal(each, right[name]), name


def test_a_job_starts_from_another_ones_model(site: Site, name: str, tmp_path: Path) -> None:
    """Trained by two DDP ranks, it begins in three FSDP2 ranks; again after a fault before they have saved anything.

    No step of the first job was due in S3: its last one went there when it was done.
    """
    first, second = f"{name}a", f"{name}b"
    train(site, first, tmp_path / "a", "ddp", machines=2, s3_every=1000)
    site.wait_done(first)
    wait_for("its last step in S3", lambda: 20 in {each.step for each in site.ledger.checkpoints(first)})
    trained = torch.load(tmp_path / "a" / "end.pt")
    source = StartFrom(job=first, parts={"model": "model"})
    train(site, second, tmp_path / "b", "fsdp", "--dies-in", "1", machines=3, start_from=source)
    submitted = site.job(second).spec.start_from
    assert submitted is not None
    assert (submitted.step, submitted.epoch) == (20, site.job(first).epoch)
    for epoch in (1, 2):
        require_equal(begun_from(tmp_path / "b", epoch), trained)
    site.wait_done(second)
    assert [each.start_step for each in site.epochs(second)] == [0, 0]


@pytest.mark.thorough
def test_a_job_starts_from_a_folder_of_stock_torch(site: Site, name: str, tmp_path: Path) -> None:
    """Under other names, and into tensor-parallel ranks; after a step of its own the folder does not matter."""
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))
    dcp.save(
        {"app": {"net": model.state_dict()}, "epoch": 3}, checkpoint_id=tmp_path / "theirs", no_dist=True
    )
    source = StartFrom(path=str(tmp_path / "theirs"), parts={"model": "app.net"})
    train(site, name, tmp_path / "b", "tp", machines=2, steps=400, start_from=source, first=3)
    require_equal(begun_from(tmp_path / "b", 1), model.state_dict())
    (tmp_path / "theirs" / ".metadata").unlink()
    site.fault("kill-rank", site.job(name).machines[1])
    site.wait_recovered(name)
    assert site.epochs(name)[-1].start_step > 0


@pytest.mark.thorough
def test_what_does_not_fit_is_reported_at_submission_or_by_the_script(
    site: Site, name: str, tmp_path: Path
) -> None:
    """A part that is not there; then shapes, which only the script knows."""
    model = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 8))
    dcp.save({"net": model.state_dict()}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    folder = str(tmp_path / "theirs")
    wrong = StartFrom(path=folder, parts={"model": "model"})
    with pytest.raises(AssertionError, match="no part 'model' there; it has net"):
        train(site, name, tmp_path / "a", "ddp", machines=2, start_from=wrong)
    source = StartFrom(path=folder, parts={"model": "net"})
    train(site, name, tmp_path / "b", "ddp", machines=2, start_from=source)
    wait_for(
        lambda: f"named: {site.describe(name)}",
        lambda: "has a tensor [10, 8]" in str(site.ledger.incidents(name)),
    )
