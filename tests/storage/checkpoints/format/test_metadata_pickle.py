"""Metadata written from arrays is what pickle would have written of the objects."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.storage.checkpoints.format import metadata_pickle
from holdfast.storage.checkpoints.format.describe import ItemKind
from holdfast.storage.checkpoints.format.metadata_pickle import Table
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata

pytestmark = pytest.mark.torch
D = 5


@st.composite
def tables(draw: st.DrawFn) -> Table:
    numbers = st.integers(0, 2**40)
    sizes = draw(st.lists(st.none() | st.lists(numbers, max_size=D), min_size=1, max_size=6))
    kinds = [
        ItemKind(
            f"n{i}.ä", None if size is None else torch.Size(size), size and TensorProperties(torch.bfloat16)
        )
        for i, size in enumerate(sizes)
    ]
    kinds = [
        ItemKind(k.fqn, k.size, TensorProperties(torch.bool)) if k.size is not None else k for k in kinds
    ]
    rows = [
        (name, draw(st.integers(0, 2)), [[draw(numbers) for _ in range(D)] for _ in range(2)])
        for name, kind in enumerate(kinds)
        for _ in range(draw(st.integers(1, 4)) if kind.size is not None else 1)
    ]
    rows = draw(st.permutations(rows))
    boxes = np.array([each[2] for each in rows], np.int64)
    return Table(
        kinds=kinds,
        files=["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"],
        planner_data={"n0.ä": ("n0", "ä"), "list.0": ("list", 0)},
        name=np.array([each[0] for each in rows], np.int64),
        file=np.array([each[1] for each in rows], np.int64),
        offsets=boxes[:, 0],
        sizes=boxes[:, 1],
        at=np.arange(len(rows)) * 2**33,
        nbytes=np.arange(len(rows)) + 7,
    )


def with_objects(table: Table) -> Metadata:
    held: dict[str, object] = {
        kind.fqn: BytesStorageMetadata()
        if kind.size is None
        else TensorStorageMetadata(kind.properties, kind.size, [])
        for kind in table.kinds
    }
    places = {}
    for row, name in enumerate(table.name.tolist()):
        kind = table.kinds[name]
        index = MetadataIndex(kind.fqn)
        if kind.size is not None:
            dims = len(kind.size)
            offset = torch.Size(table.offsets[row, :dims].tolist())
            index = MetadataIndex(kind.fqn, offset, len(held[kind.fqn].chunks))
            size = torch.Size(table.sizes[row, :dims].tolist())
            held[kind.fqn].chunks.append(ChunkStorageMetadata(offset, size))
        file = table.files[int(table.file[row])]
        places[index] = _StorageInfo(file, int(table.at[row]), int(table.nbytes[row]))
    return Metadata(held, table.planner_data, places, StorageMeta(save_id="3.1"), CURRENT_DCP_VERSION)


@settings(max_examples=150)
@given(tables())
def test_it_reads_as_the_objects_would(table: Table) -> None:
    """Stock pickle and the restricted reader give the same metadata, types and index hints included."""
    out = io.BytesIO()
    metadata_pickle.write(table, "3.1", out)
    expected = with_objects(table)
    for found in (pickle.loads(out.getvalue()), load_metadata(out.getvalue())):
        assert found == expected
        assert list(found.state_dict_metadata) == list(expected.state_dict_metadata)
        hints = {index: index.index for index in expected.storage_data}
        assert {index: index.index for index in found.storage_data} == hints
        for each in found.state_dict_metadata.values():
            if isinstance(each, TensorStorageMetadata):
                assert all(type(box.offsets) is type(box.sizes) is torch.Size for box in each.chunks)
        assert pickle.dumps(found)
