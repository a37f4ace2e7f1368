"""Loads from a checkpoint directory that is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.load.reader import load

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]


@pytest.mark.parametrize("kept", [None, 0])
def test_a_file_that_is_missing_or_cut_off_is_named(tmp_path: Path, kept: int | None) -> None:
    """With what became of it, and not as a state of other names."""
    dcp.save({"w": torch.ones(999)}, checkpoint_id=tmp_path, no_dist=True)
    (file,) = tmp_path.glob("*.distcp")
    content = file.read_bytes()
    file.unlink()
    if kept is not None:
        file.write_bytes(content[:kept])
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, lambda _: {"w": torch.zeros(999)})
    assert "rank 0: ." not in str(error.value)
    assert "A file of it is missing, cut off or cannot be read" in str(error.value)
