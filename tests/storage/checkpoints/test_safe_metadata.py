"""``.metadata`` is a pickle; it may not do what a pickle can."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.safe_metadata import load_metadata

pytestmark = pytest.mark.torch


class _Runs:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_metadata_of_stock_torch_is_read(tmp_path: Path) -> None:
    """All that a stock writer puts into it is allowed, for every type of element."""
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    state = {str(kind): torch.zeros(2, 3).to(kind) for kind in kinds}
    dcp.save({"model": state, "names": ["a"]}, checkpoint_id=tmp_path / "ckpt")
    data = (tmp_path / "ckpt" / ".metadata").read_bytes()
    read, stock = load_metadata(data), pickle.loads(data)
    assert read.state_dict_metadata == stock.state_dict_metadata
    assert read.storage_data == stock.storage_data


def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path) -> None:
    """Whether it is the whole content or hides inside real metadata, the call is never made."""
    bomb = _Runs(tmp_path / "made")
    hidden = Metadata(state_dict_metadata={}, planner_data=bomb)
    for data in (pickle.dumps(bomb), pickle.dumps(hidden)):
        with pytest.raises(
            CheckpointError, match=r"gpt step 4: its .metadata is refused: it refers to posix.mkdir"
        ):
            load_metadata(data, "gpt step 4")
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(bomb))
    assert (tmp_path / "made").exists(), "the control: an ordinary unpickler does make the call"


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps({"a": 1}), pickle.dumps([1])[:-1]])
def test_what_is_no_metadata_is_one_clear_error(data: bytes) -> None:
    """Cut, foreign or empty."""
    with pytest.raises(CheckpointError, match="metadata"):
        load_metadata(data)
