"""Objects in a checkpoint: plain values are read at once, others by torch's restricted reader, none of them run."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.load.safe_load import load_object


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("value", [1, 2.5, True, None, "text", (0.9, 0.999), [1, [2]], {"a": {"b": (None,)}}])
@pytest.mark.parametrize("room", [0, 64], ids=["exact", "padded"])
def test_plain_values_are_read_without_torch(value: Any, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros after the end are the slot's room to grow."""
    content = io.BytesIO(dump_object(value) + bytes(room))
    monkeypatch.setattr(torch, "load", None)
    assert load_object(content, "x") == value


@pytest.mark.parametrize("value", [b"", bytearray(), {"a": (1, b"")}, [b"", b"x"]])
def test_empty_bytes_come_back(value: Any) -> None:
    """Pickled as a call of ``bytes``, which is data for all that: an empty token buffer consists of them."""
    assert load_object(io.BytesIO(dump_object(value)), "x") == value


def test_tensors_are_read_by_torch() -> None:
    """Also within something plain."""
    loaded = load_object(io.BytesIO(dump_object({"t": torch.arange(3)})), "x")
    assert torch.equal(loaded["t"], torch.arange(3))


@pytest.mark.parametrize("inside", [False, True])
def test_nothing_is_run(inside: bool, tmp_path: Path) -> None:
    """Neither way."""
    bomb = _Runs(tmp_path / "made")
    with pytest.raises(CheckpointError, match="x: it holds an object that a checkpoint is not trusted with"):
        load_object(io.BytesIO(dump_object([bomb] if inside else bomb)), "x")
    assert not (tmp_path / "made").exists()
