"""``.metadata`` is a pickle; it may not do what a pickle can."""

from __future__ import annotations

import enum
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata

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


class _EarlyPickler(pickle.Pickler):
    """Writes members of enumerations as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value: object) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented


@pytest.mark.parametrize("protocol", [2, 4])
def test_metadata_written_by_early_python_3_11_is_read(protocol: int) -> None:
    """Debian 12 has such a one; its checkpoints must be readable there and elsewhere."""
    held = TensorStorageMetadata(TensorProperties(), torch.Size([2]), [])
    out = io.BytesIO()
    _EarlyPickler(out, protocol).dump(Metadata({"a": held}))
    assert b"getattr" in out.getvalue()
    assert load_metadata(out.getvalue()).state_dict_metadata == {"a": held}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Metadata, "__init__"),
        (_MEM_FORMAT_ENCODING, "__class__"),
        (_MEM_FORMAT_ENCODING, "mro"),
        ([], "append"),
    ],
)
def test_only_members_of_enumerations_may_be_asked_for(kind: object, name: str) -> None:
    """``getattr`` could fetch anything."""

    class Asks:
        def __reduce__(self) -> tuple[Any, ...]:
            return getattr, (kind, name)

    with pytest.raises(CheckpointError, match=f"it asks for '{name}' of"):
        load_metadata(pickle.dumps(Metadata({}, planner_data=Asks())))


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps({"a": 1}), pickle.dumps([1])[:-1]])
def test_what_is_no_metadata_is_one_clear_error(data: bytes) -> None:
    """Cut, foreign or empty."""
    with pytest.raises(CheckpointError, match="metadata"):
        load_metadata(data)
