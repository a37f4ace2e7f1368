"""The compact metadata has the content of the stock one, of every layout; and gives a rank no more than it asks for."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from benchmarks import planning
from holdfast.errors import CheckpointError, DamagedError, UncoveredError
from holdfast.storage.checkpoints.format import boxes, columns, metadata_pickle, pieces, plan_file
from holdfast.storage.checkpoints.format.boxes import Boxes
from holdfast.storage.checkpoints.format.compact import CompactMetadata
from holdfast.storage.checkpoints.format.describe import ItemKind
from holdfast.storage.checkpoints.format.global_plan import plan_globally
from holdfast.storage.checkpoints.format.metadata_pickle import Table
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.load.safe_load import SafeLoadPlanner
from holdfast.storage.checkpoints.remote.manifests import PartFile
from tests.storage.checkpoints.format.test_metadata_pickle import tables

pytestmark = pytest.mark.torch
RANKS = 12


def stock(table: Table) -> Metadata:
    """The metadata that stock torch reads."""
    out = io.BytesIO()
    metadata_pickle.write(table, "1.1", out)
    return load_metadata(out.getvalue())


def opened(table: Table, fallback: Callable[[], Metadata] | None = None) -> CompactMetadata:
    """The same as a rank reads it."""
    data = boxes.pack(table, "1.1")
    return CompactMetadata(
        Boxes(data),
        list(table.files),
        lambda spans: [data[start:end] for start, end in spans],
        fallback or (lambda: pytest.fail("the stock form is not needed")),
    )


def all_of(metadata: Metadata) -> dict[str, Any]:
    """The content of metadata, whatever the order of its boxes."""
    return {
        "names": {
            name: (each.size, each.properties, sorted((box.offsets, box.sizes) for box in each.chunks))
            if isinstance(each, TensorStorageMetadata)
            else None
            for name, each in metadata.state_dict_metadata.items()
        },
        "places": {
            (index.fqn, index.offset): (info.relative_path, info.offset, info.length)
            for index, info in metadata.storage_data.items()
        },
        "paths": dict(metadata.planner_data),
    }


@st.composite
def cuts(draw: st.DrawFn) -> Table:
    """A state of some tensors, each cut into boxes anyhow, with objects, empty boxes and per-rank names."""
    kinds, rows = [], []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.lists(st.integers(1, 7), max_size=3))
        kinds.append(ItemKind(f"model.{number}", torch.Size(size), TensorProperties(torch.float16)))
        found = [([0] * len(size), size)]
        for _ in range(draw(st.integers(0, 6))):
            offsets, sizes = found.pop(draw(st.integers(0, len(found) - 1)))
            if not size or (1 in (dim := draw(st.integers(0, len(size) - 1)),) and len(size) < 2):
                found.append((offsets, sizes))
                continue
            at = draw(st.integers(0, sizes[dim]))
            after, rest = list(offsets), list(sizes)
            after[dim] += at
            rest[dim] -= at
            found += [(offsets, [*sizes[:dim], at, *sizes[dim + 1 :]]), (after, rest)]
        by_volume = sorted(found, key=lambda each: math.prod(each[1]))
        distinct = {tuple(offsets): sizes for offsets, sizes in by_volume}  # an empty one gives way
        rows += [(number, offsets, sizes) for offsets, sizes in distinct.items()]
    own = draw(st.sets(st.integers(0, RANKS - 1)))
    for part in ("python", "torch"):
        for rank in sorted(own):
            size = torch.Size((5,)) if part == "torch" else None
            kinds.append(ItemKind(f"rng/{rank}.{part}", size, size and TensorProperties(torch.uint8)))
            rows.append((len(kinds) - 1, (0,) if size else (), (5,) if size else ()))
    rows = draw(st.permutations(rows))
    offsets, sizes = np.zeros((len(rows), 3), np.int64), np.ones((len(rows), 3), np.int64)
    for row, (_, begin, size) in enumerate(rows):
        offsets[row, : len(begin)], sizes[row, : len(size)] = begin, size
    return Table(
        kinds=kinds,
        files=[f"__{rank}_0.distcp" for rank in range(RANKS)],
        planner_data={kind.fqn: tuple(kind.fqn.split(".")) for kind in kinds},
        name=np.array([each[0] for each in rows], np.int64),
        file=np.array([draw(st.integers(0, RANKS - 1)) for _ in rows], np.int64),
        offsets=offsets,
        sizes=sizes,
        at=np.arange(len(rows)) * 64,
        nbytes=np.arange(len(rows)) + 1,
    )


class Held(torch.Tensor):
    """Some boxes of a tensor, as distributed tensors report them."""

    boxes: list[Any]

    def __create_chunk_list__(self) -> list[Any]:
        return self.boxes


def local(size: torch.Size, held: list[Any]) -> Held:
    made = torch.empty(size, dtype=torch.float16).as_subclass(Held)
    made.boxes = held
    return made


@settings(max_examples=100, deadline=None)
@given(cuts() | tables())
def test_it_says_what_the_stock_form_says(table: Table) -> None:
    """Read whole or name by name: every name, box, place and path; and the stock form is written of it again."""
    expected = all_of(stock(table))
    assert all_of(opened(table)) == expected
    again = boxes.unpack(boxes.pack(table, "1.1"), table.files)
    assert all_of(stock(again)) == expected
    assert len(opened(table).state_dict_metadata) == len(table.kinds)
    assert len(opened(table).storage_data) == len(expected["places"])


@settings(max_examples=60, deadline=None)
@given(cuts(), st.data())
def test_a_load_plan_is_that_of_the_stock_form(table: Table, data: st.DataObject) -> None:
    """For any box of any tensor: the same reads from the same places; boxes beside it are not even looked at."""
    state: dict[str, Any] = {}
    known = stock(table)
    for name, each in known.state_dict_metadata.items():
        if isinstance(each, TensorStorageMetadata) and name.startswith("model"):
            begin = [data.draw(st.integers(0, most)) for most in each.size]
            long = [data.draw(st.integers(0, most - at)) for at, most in zip(begin, each.size, strict=True)]
            state[name] = local(each.size, [_chunk(begin, long)])
        elif not isinstance(each, TensorStorageMetadata):
            state[name] = None
    compact = opened(table)
    compact.narrow(state)
    found, expected = (
        create_default_local_load_plan(state, compact),
        create_default_local_load_plan(state, known),
    )
    assert _reads(found, compact) == _reads(expected, known)
    for name, target in state.items():
        if target is not None and 0 in target.boxes[0].sizes:
            assert compact.state_dict_metadata[name].chunks == []


def _chunk(offsets: list[int], sizes: list[int]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def _reads(plan: Any, metadata: Metadata) -> list[Any]:
    return sorted(
        (
            item.storage_index.fqn,
            tuple(item.storage_index.offset or ()),
            tuple(item.dest_offsets),
            tuple(item.storage_offsets),
            tuple(item.lengths),
            metadata.storage_data[item.storage_index].relative_path,
            metadata.storage_data[item.storage_index].offset,
        )
        for item in plan.items
        if 0 not in item.lengths
    )


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(-(2**62), 2**62) | st.just(7), min_size=5, max_size=5), max_size=4))
def test_columns_come_back(found: list[list[int]]) -> None:
    """Regular or not, of any width."""
    numbers = [np.array(each, np.int64) for each in found]
    back = columns.decode(columns.encode(numbers), len(numbers), 5)
    assert [each.tolist() for each in back] == found


def test_columns_that_follow_a_rule_take_no_room() -> None:
    """Ten thousand equal steps are a few bytes; so is one that deviates."""
    steps = np.arange(10_240) * 4096
    steps[77] += 5
    assert len(columns.encode([steps])) < 100


def sharded(ranks: int, tensors: int) -> Table:
    return plan_globally(*planning.sharded_with_own(ranks, tensors)).table()


def test_what_is_missing_is_named() -> None:
    """A checkpoint that lacks a box: the elements are counted, nothing is loaded."""
    table = sharded(16, 3)
    keep = np.flatnonzero((table.name != 1) | (table.file != 4))
    kept = {name: getattr(table, name)[keep] for name in ("name", "file", "offsets", "sizes", "at", "nbytes")}
    torn = opened(Table(table.kinds, table.files, table.planner_data, **kept))
    name, size = table.kinds[1].fqn, table.kinds[1].size
    assert size is not None
    with pytest.raises(UncoveredError, match=rf"{name}: 40960 of the {math.prod(size)} elements") as found:
        torn.narrow({name: torch.empty(size)})
    assert (found.value.path, found.value.missing) == (name, 40960)
    torn.narrow({name: local(size, [_chunk([0, 0], [640, 64])])})


def test_names_by_rank_take_no_room() -> None:
    """Five own names of each rank are five rules; each is found, and no other."""
    few, many = boxes.pack(sharded(16, 2), "1.1"), boxes.pack(sharded(1024, 2), "1.1")
    assert len(many) < len(few) + 300
    metadata = opened(sharded(64, 2))
    names = metadata.state_dict_metadata
    assert "structure/63.model" in names
    assert {"structure/64.model", "structure/063.model", "structure/63.models", "structure/"}.isdisjoint(
        names
    )
    assert metadata.planner_data["rng/5.torch"] == ("rng/5", "torch")
    assert sum(name.startswith("structure/") for name in names) == 128
    metadata.narrow({"structure/63.model": None})
    ((index, info),) = metadata.storage_data.known.items()  # type: ignore[attr-defined]
    assert (index.fqn, info.relative_path) == ("structure/63.model", "__63_0.distcp")


def test_what_is_irregular_is_read_in_part() -> None:
    """A rank takes the blocks that have its rows, and they are neighbours in the file."""
    table = sharded(2048, 6)
    rng = np.random.default_rng(1)
    table = Table(**{**vars(table), "at": rng.integers(0, 2**40, len(table.at)), "files": table.files})
    data, asked = boxes.pack(table, "1.1"), []

    def fetch(spans: Any) -> list[Any]:
        asked.extend(spans)
        return [data[start:end] for start, end in spans]

    metadata = CompactMetadata(Boxes(data), list(table.files), fetch, lambda: pytest.fail("not needed"))
    size = table.kinds[0].size
    assert size is not None
    held = _chunk([5003, 0], [2, 64])
    metadata.narrow({kind.fqn: local(size, [held]) for kind in table.kinds[:6]})
    assert len(asked) == 6
    asked.sort()
    assert all(left[1] == right[0] for left, right in itertools.pairwise(asked))
    assert sum(end - start for start, end in asked) < 0.6 * len(data)
    where = all_of(stock(table))["places"]
    for index, info in metadata.storage_data.known.items():  # type: ignore[attr-defined]
        assert where[index.fqn, index.offset] == (info.relative_path, info.offset, info.length)


@pytest.mark.parametrize("at", [0, 9, 40, 70, -3])
def test_damage_is_refused(at: int) -> None:
    """One byte of the beginning, the head or a block."""
    data = bytearray(boxes.pack(sharded(16, 3), "1.1"))
    data[at] ^= 0x10
    with pytest.raises(DamagedError, match="compact metadata"):
        boxes.unpack(bytes(data), [f"__{rank}_0.distcp" for rank in range(16)])


@pytest.mark.parametrize("nbytes", [0, 5, 30, 100, -1])
def test_a_truncated_file_is_refused(nbytes: int) -> None:
    """Wherever it ends."""
    data = boxes.pack(sharded(16, 3), "1.1")[:nbytes]
    with pytest.raises(DamagedError, match="compact metadata"):
        boxes.unpack(data, [f"__{rank}_0.distcp" for rank in range(16)])


def test_a_damaged_block_leaves_the_stock_form() -> None:
    """Blocks that a rank reads beyond the head are checked as well."""
    table = sharded(16, 3)
    data, known = boxes.pack(table, "1.1"), stock(table)
    metadata = CompactMetadata(
        Boxes(data), list(table.files), lambda spans: [b"damaged" for _ in spans], lambda: known
    )
    name, size = table.kinds[1].fqn, table.kinds[1].size
    assert size is not None
    planner = SafeLoadPlanner()
    planner.set_up_planner({name: torch.empty(size, dtype=torch.bfloat16)}, metadata)
    assert len(planner.create_local_plan().items) == 16


def test_files_are_placed_in_both_forms_alike() -> None:
    """Of ranks whose part is several files, own and referred to; a box that lies in none is an error."""
    table = sharded(16, 3)
    of_rank = table.at[table.file == 3]
    border = int(np.sort(of_rank)[2])
    end = int((table.at + table.nbytes).max())
    parts = [
        (
            PartFile(name=f"/bucket/old/__{rank}_0.distcp", start=0, nbytes=border, digest=""),
            PartFile(name=f"__{rank}_1.distcp", start=border, nbytes=end - border, digest=""),
        )
        for rank in range(16)
    ]
    out = io.BytesIO()
    compact = pieces.publishable(boxes.pack(table, "1.1"), parts, out)
    names = [part.name for each in parts for part in each]
    expected = load_metadata(pieces.relocate(stock_bytes(table), dict(enumerate(parts))))
    assert (
        all_of(load_metadata(out.getvalue()))
        == all_of(expected)
        == all_of(stock(boxes.unpack(compact, names)))
    )
    short = [(each[0], each[1].model_copy(update={"nbytes": 1})) for each in parts]
    with pytest.raises(CheckpointError, match=r"crosses the end of __0_1\.distcp"):
        pieces.publishable(boxes.pack(table, "1.1"), short, io.BytesIO())
    with pytest.raises(CheckpointError, match="16"):
        pieces.publishable(boxes.pack(table, "1.1"), parts[:-1], io.BytesIO())


def stock_bytes(table: Table) -> bytes:
    out = io.BytesIO()
    metadata_pickle.write(table, "1.1", out)
    return out.getvalue()


def test_a_plan_of_many_boxes_has_no_stock_form() -> None:
    """It is written when a checkpoint is published; a plan of few has both, and reads as a ``.metadata``."""
    content = plan_file.join(b"stock", b"compact")
    assert plan_file.split(content) == plan_file.PlanFile(b"stock", b"compact")
    assert plan_file.split(b"what an older version wrote") == plan_file.PlanFile(
        b"what an older version wrote", b""
    )
    with pytest.raises(CheckpointError, match="damaged"):
        plan_file.split(content[1:])
