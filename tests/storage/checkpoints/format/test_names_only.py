"""Names of a checkpoint without torch: what stock torch and a save of ours write, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.names_only import files_in, has_part, names_in, parts_of
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]


def test_the_names_are_those_that_torch_reads(tmp_path: Path) -> None:
    """Tensors of several types, nested values and an object."""
    state = {
        "model": nn.Linear(2, 3).bfloat16().state_dict(),
        "app": {"ema": {"weight": torch.ones(2, dtype=torch.complex64)}},
        "epoch": 3,
    }
    dcp.save(state, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    content = (tmp_path / "ckpt" / ".metadata").read_bytes()
    names = names_in(content, "it")
    assert names == load_metadata(content).state_dict_metadata.keys()
    assert parts_of(names) == ["app", "epoch", "model"]
    assert all(has_part(names, part) for part in ("model", "app", "app.ema", "epoch", ""))
    assert not any(has_part(names, part) for part in ("mod", "app.em", "optimizer"))


def test_the_files_are_those_with_the_bytes(tmp_path: Path) -> None:
    """With the length that each has at least; of some parts only theirs."""
    dcp.save({"model": {"w": torch.ones(9)}, "epoch": 3}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    content = (tmp_path / "ckpt" / ".metadata").read_bytes()
    (file,) = (tmp_path / "ckpt").glob("*.distcp")
    assert files_in(content, "it") == {file.name: file.stat().st_size}
    assert files_in(content, "it", ["epoch"])[file.name] < file.stat().st_size
    assert files_in(content, "it", ["optimizer"]) == {}


def test_nothing_in_it_is_run(tmp_path: Path) -> None:
    """A pickle that would call something is only unreadable."""

    class Bad:
        def __reduce__(self) -> object:
            return Path.touch, (tmp_path / "ran",)

    for content in (pickle.dumps(Bad()), b"no pickle", pickle.dumps({"model": 1})):
        with pytest.raises(CheckpointError, match=r"it: its \.metadata cannot be read"):
            names_in(content, "it")
    assert not (tmp_path / "ran").exists()


def test_torch_is_not_imported() -> None:
    """The gateway does without."""
    code = "import sys, holdfast.storage.checkpoints.format.names_only; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
