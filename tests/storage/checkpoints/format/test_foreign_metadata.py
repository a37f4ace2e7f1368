"""Metadata of other programs: all that stock torch writes is read, and no few bytes want hours or gigabytes."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import metadata_pickle
from holdfast.storage.checkpoints.format.foreign_metadata import load_foreign
from holdfast.storage.checkpoints.format.names_only import names_in
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from tests.child_reads import outcomes_of
from tests.storage.checkpoints.format.test_metadata_pickle import tables
from tests.storage.checkpoints.format.test_safe_metadata import _EarlyPickler, _Runs

pytestmark = pytest.mark.torch
ROOM_BYTES = 3 << 30
CPU_S = 20


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_metadata_of_stock_torch_is_read(tmp_path: Path) -> None:
    """All that a stock writer puts into it is known, for every type of element."""
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    state = {str(kind): torch.zeros(2, 3).to(kind) for kind in kinds}
    dcp.save({"model": state, "names": ["a"], "steps": {1: 2}}, checkpoint_id=tmp_path / "ckpt")
    data = (tmp_path / "ckpt" / ".metadata").read_bytes()
    assert load_foreign(data, "it") == pickle.loads(data)


def sharded() -> Metadata:
    """A save by several ranks, with all that metadata may hold."""
    size, half = torch.Size([4, 2]), torch.Size([2, 2])
    held = TensorStorageMetadata(
        TensorProperties(torch.bfloat16),
        size,
        [ChunkStorageMetadata(torch.Size([at, 0]), half) for at in (0, 2)],
    )
    return Metadata(
        {"model.w": held, "epoch": BytesStorageMetadata()},
        OrderedDict({"model.w": ("model", "w"), "epoch": ("epoch",), "list.0": ("list", 0)}),
        {
            MetadataIndex("model.w", torch.Size([0, 0]), 0): _StorageInfo("__0_0.distcp", 0, 16),
            MetadataIndex("model.w", torch.Size([2, 0]), 1): _StorageInfo("__1_0.distcp", 0, 16),
            MetadataIndex("epoch"): _StorageInfo("__0_0.distcp", 16, 9, ["zstd"]),
        },
        StorageMeta(checkpoint_id=Path("/data/ckpt"), save_id="3"),
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("pickler", [pickle.Pickler, _EarlyPickler])
def test_every_protocol_is_read(pickler: Any, protocol: int) -> None:
    """Those of early Python 3.11 too, which writes members of enumerations otherwise."""
    out = io.BytesIO()
    pickler(out, protocol).dump(sharded())
    assert load_foreign(out.getvalue(), "it") == sharded()
    assert names_in(out.getvalue(), "it") == {"model.w", "epoch"}


@settings(max_examples=50)
@given(tables())
def test_what_holdfast_writes_is_read(table: metadata_pickle.Table) -> None:
    """A job's checkpoint may be another one's foreign one."""
    out = io.BytesIO()
    metadata_pickle.write(table, "3.1", out)
    assert load_foreign(out.getvalue(), "it") == load_metadata(out.getvalue())


def test_code_is_not_run_and_classes_stay_as_they_are(tmp_path: Path) -> None:
    """Neither a call, nor an attribute of a class of ours or torch's, is what a checkpoint may ask for."""
    bomb = _Runs(tmp_path / "made")
    posix_mkdir = rf"it: its \.metadata is refused: it refers to {os.mkdir.__module__}\.mkdir"
    for data in (pickle.dumps(bomb), pickle.dumps(Metadata({}, planner_data=bomb))):
        with pytest.raises(CheckpointError, match=posix_mkdir):
            load_foreign(data, "it")
    assert not (tmp_path / "made").exists()
    changes_class = (
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\nN}X\x07\0\0\0versionX\x01\0\0\0xs\x86b."
    )
    with pytest.raises(CheckpointError, match="it sets attributes of a PickledKind: refused"):
        load_foreign(changes_class, "it")
    assert Metadata({}).version is None


def _metadata(inner: bytes) -> bytes:
    """Metadata whose planner data is what ``inner`` pushes."""
    return (
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}(X\x13\0\0\0state_dict_metadata}"
        b"X\x0c\0\0\0planner_data" + inner + b"X\x0c\0\0\0storage_dataNX\x0c\0\0\0storage_metaNub."
    )


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (b"MetadataIndex\n)\x81}X\x03\0\0\0fqn)sb", "MetadataIndex needs a name"),
        (b"MetadataIndex\n)\x81}(X\x03\0\0\0fqnX\x01\0\0\0aX\x04\0\0\0moreNub", "has other attributes"),
        (b"StorageMeta\n)\x81}X\x04\0\0\0moreNsb", "StorageMeta has other attributes"),
        (b"TensorProperties\n)\x81K\x01b", "TensorProperties has other attributes"),
        (b"TensorProperties\n)\x81(NNNK\x07Ntb", "memory_format"),
        (b"StorageMeta\nK\x01\x85\x81", "it makes a StorageMeta: refused"),
        (b"StorageMeta\n)R", "it calls StorageMeta: refused"),
    ],
)
def test_other_attributes_are_refused(inner: bytes, why: str) -> None:
    """Each class takes those that it has, of their types, in the way in which it is pickled."""
    with pytest.raises(CheckpointError, match=why):
        load_foreign(_metadata(b"ctorch.distributed.checkpoint.metadata\n" + inner), "it")


def _doubled(levels: int) -> bytes:
    return b")" + b"q\x01h\x01\x86" * levels


def _colliding(number: int) -> bytes:
    """A dictionary whose keys all have the hash 0."""
    prime = (1 << 61) - 1
    keys = b"".join(
        b"\x8a\x0b" + (each * prime).to_bytes(11, "little", signed=True) + b"N" for each in range(1, number)
    )
    return b"}(" + keys + b"u"


def _row(count: int) -> bytes:
    return b"]q\x01(" + b"K\x01" * count + b"e0"


BOMBS: dict[str, bytes] = {
    "memo of gigabytes": _metadata(b"Nr" + struct.pack("<I", 2_000_000_000)),
    "an array as long as it says": b"\x80\x05\x96" + struct.pack("<Q", 1 << 34) + b".",
    "a key that hashes for hours": _metadata(b"}" + _doubled(60) + b"Ns"),
    "an index that hashes for hours": _metadata(
        b"}ctorch.distributed.checkpoint.metadata\nMetadataIndex\n)\x81}X\x03\0\0\0fqn"
        + _doubled(60)
        + b"sbNs"
    ),
    "keys of one hash": _metadata(_colliding(300_000)),
    "one list in many sizes": _metadata(_row(1_000_000) + b"](" + b"ctorch\nSize\nh\x01\x85R" * 3_000 + b"e"),
    "one list in many dictionaries": _metadata(
        _row(1_000_000) + b"](" + b"ccollections\nOrderedDict\nh\x01\x85R" * 3_000 + b"e"
    ),
    "one text in many paths": _metadata(
        b"X"
        + struct.pack("<I", 1 << 20)
        + b"a" * (1 << 20)
        + b"q\x010]("
        + b"cpathlib\nPath\n(h\x01h\x01h\x01tR" * 3_000
        + b"e"
    ),
    "tuples in tuples": _metadata(b")" + b"\x85" * 500_000),
    "lists in lists, from the outside": _metadata(
        b"]q\x00" + b"0h\x00]q\x01a0h\x01]q\x00a" * 100_000 + b"0N"
    ),
    "a huge integer": _metadata(b"\x8b" + struct.pack("<I", 8_000_000) + b"\x7f" * 8_000_000),
}
READS = f"""
import pickle, resource, sys
from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format import foreign_metadata, names_only
resource.setrlimit(resource.RLIMIT_AS, ({ROOM_BYTES}, resource.getrlimit(resource.RLIMIT_AS)[1]))
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_S}, {CPU_S}))
for name, content in pickle.loads(sys.stdin.buffer.read()).items():
    for read in (foreign_metadata.load_foreign, names_only.names_in):
        print(f"{{name}}, {{read.__name__}}", end=": ", flush=True)
        try:
            print("read", type(read(content, "it")).__name__)
        except CheckpointError as error:
            print("refused:", str(error)[:200])
"""


def test_bombs_are_refused() -> None:
    """In a process with little memory and time; what is left of one without its harm may be read for its names."""
    outcomes = outcomes_of(READS, BOMBS, timeout_s=300)
    assert len(outcomes) == 2 * len(BOMBS)
    assert {
        name: line
        for name, line in outcomes.items()
        if "load_foreign" in name and not line.startswith("refused: it:")
    } == {}


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["memo of gigabytes", "one list in many sizes"])
def test_control_the_unbounded_reader_does_what_they_ask(which: str) -> None:
    """Or the test above would show nothing."""
    script = f"""
import resource, sys
from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
resource.setrlimit(resource.RLIMIT_AS, ({ROOM_BYTES}, resource.getrlimit(resource.RLIMIT_AS)[1]))
try:
    load_metadata(sys.stdin.buffer.read())
except CheckpointError as error:
    sys.exit(9 if isinstance(error.__cause__, MemoryError) else 1)
"""
    done = subprocess.run([sys.executable, "-c", script], input=BOMBS[which], check=False, timeout=300)
    assert done.returncode == 9


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    """Whatever they are."""
    for read in (load_foreign, names_in):
        with pytest.raises(CheckpointError, match=r"it: its \.metadata"):
            read(content, "it")
