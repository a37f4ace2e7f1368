"""A rehearsal finds what a digest cannot: a file whose bytes are right and that does not restore; with the path."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from holdfast.models.rehearsal import Proof
from holdfast.session import rng
from holdfast.storage.checkpoints.format.flat import flat_shards
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.load.prove import prove
from holdfast.storage.checkpoints.save import buffers, slot_files
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter

pytestmark = pytest.mark.torch

OBJECT, WEIGHT = "loader.position", "model.weight"


class Bomb:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()


class OfTheScript:
    """A class that the script knows."""

    def __init__(self) -> None:
        self.value = 1


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "model": {
            "weight": torch.randn(5, 7),
            "half": torch.randn(3).bfloat16(),
            "mask": torch.rand(9) > 0.5,
            "count": torch.tensor(3),
            "empty": torch.empty(0, 4),
            "complex": torch.randn(3, 2, dtype=torch.complex64),
            "float8": torch.randn(8).to(torch.float8_e4m3fn),
            "nan": torch.full((3,), float("nan")),
        },
        "zero": flat_shards({"a": (3, 3), "b": (4, 2)}, torch.arange(17.0), 0),
        "loader": {
            "position": 17,
            "names": ["a", "b"],
            "bits": np.arange(4),
            "nan": float("nan"),
            "set": {"a", "b"},
        },
        "rng": rng.capture(),
    }


def shard(folder: Path, values: dict[str, Any]) -> Path:
    planned = make_plan(values, folder, epoch=1, number=1)
    writer = ShardWriter(planned.layout, Owner("gpt", 1, 0, 1), folder)
    contents = writer.collect(flatten_state_dict(values)[0])
    assert contents is not None
    return writer.save(contents, 4)


class Inside:
    """A shard file that is damaged in meaning: its description of itself stays right, its digest too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = bytearray(path.read_bytes())
        header = buffers.read_header(path)
        assert header is not None
        self.header = header
        self.metadata = load_metadata(bytes(self._data[header.meta_offset :][: header.meta_nbytes]))

    def put(self, name: str, at: int, data: bytes, offset: tuple[int, ...] | None = None) -> None:
        """Overwrite bytes of an item."""
        place = self.metadata.storage_data[index(name, offset)]
        start = self.header.payload_offset + place.offset + at
        self._data[start : start + len(data)] = data

    def replace(self, name: str, value: object) -> None:
        """Overwrite an object."""
        place = self.metadata.storage_data[MetadataIndex(name)]
        data = dump_object(value)
        assert len(data) <= place.length
        self.put(name, 0, data.ljust(place.length, b"\0"))

    def write(self) -> Path:
        """Put the header and the digest right."""
        text = pickle.dumps(self.metadata)
        room = self.header.payload_offset - self.header.meta_offset
        assert len(text) <= room
        self._data[self.header.meta_offset : self.header.payload_offset] = text.ljust(room, b"\0")
        header = self.header.model_copy(update={"meta_nbytes": len(text)})
        header = header.model_copy(update={"digest": buffers.digest_of(self._data, header)})
        self._path.unlink()
        with slot_files.create(self._path, header.file_nbytes) as buf:
            buf[buffers.HEADER_BYTES :] = bytes(self._data[buffers.HEADER_BYTES :])
            buffers.commit(buf, header)
        assert buffers.verify(self._path) == header
        return self._path


def index(name: str, offset: tuple[int, ...] | None = None) -> MetadataIndex:
    return MetadataIndex(name, torch.Size(offset) if offset is not None else None)


def problems(proof: Proof) -> dict[str, str]:
    assert proof.ok is not bool(proof.problems)
    return {each.path: each.wrong for each in proof.problems}


def test_a_shard_of_all_kinds_is_proven(tmp_path: Path) -> None:
    """Every item is loaded and compared; nothing is left out."""
    path = shard(tmp_path, state())
    proof = prove(path)
    assert problems(proof) == {}
    assert proof.ok
    assert proof.untested == ()
    assert proof.items == len(flatten_state_dict(state())[0])
    assert proof.nbytes == path.stat().st_size


@pytest.mark.parametrize("group_bytes", [1, 60, 1 << 10])
def test_a_large_tensor_is_proven_in_parts(group_bytes: int, tmp_path: Path) -> None:
    """Memory stays bounded by what is loaded at a time, and every row is compared."""
    path = shard(tmp_path, {"model": {"weight": torch.randn(40, 3), "tall": torch.randn(50)}})
    assert prove(path, group_bytes=group_bytes).ok
    inside = Inside(path)
    inside.put(WEIGHT, 0, b"no zip", (0, 0))
    assert "stock torch cannot read" in problems(prove(inside.write(), group_bytes=group_bytes))[WEIGHT]


def test_bytes_that_changed_are_found_by_the_digest(tmp_path: Path) -> None:
    """The file as a whole, before anything is loaded."""
    path = shard(tmp_path, state())
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert "bytes changed after it was saved" in problems(prove(path))[""]
    assert "missing, incomplete or cut short" in problems(prove(tmp_path / "r9-a.shard"))[""]


def lost(inside: Inside) -> None:
    del inside.metadata.storage_data[index(WEIGHT, (0, 0))]


def undescribed(inside: Inside) -> None:
    del inside.metadata.state_dict_metadata[WEIGHT]


def lost_object(inside: Inside) -> None:
    del inside.metadata.storage_data[index(OBJECT)]


def beyond(inside: Inside) -> None:
    places = inside.metadata.storage_data
    places[index(WEIGHT, (0, 0))] = replace(
        places[index(WEIGHT, (0, 0))], offset=inside.header.payload_nbytes
    )


def elsewhere(inside: Inside) -> None:
    """Make the data begin four bytes late, by its entry: within the item, and not the tensor's."""
    places, which = inside.metadata.storage_data, index(WEIGHT, (0, 0))
    places[which] = replace(places[which], data_at=places[which].data_at + 4)


def another_type(inside: Inside) -> None:
    known = inside.metadata.state_dict_metadata[WEIGHT]
    inside.metadata.state_dict_metadata[WEIGHT] = replace(
        known, properties=replace(known.properties, dtype=torch.int32)
    )


def short_rows(inside: Inside) -> None:
    """The item has the first four of five rows: its chunk does not cover what the rank held."""
    known = inside.metadata.state_dict_metadata[WEIGHT]
    (chunk,) = known.chunks
    known.chunks[0] = replace(chunk, sizes=torch.Size((4, 7)))
    places, which = inside.metadata.storage_data, index(WEIGHT, (0, 0))
    places[which] = replace(places[which], data_nbytes=4 * 7 * 4)


def outside(inside: Inside) -> None:
    known = inside.metadata.state_dict_metadata[WEIGHT]
    inside.metadata.state_dict_metadata[WEIGHT] = replace(known, size=torch.Size((4, 7)))


def overlapping(inside: Inside) -> None:
    places = inside.metadata.storage_data
    where = places[index("model.nan", (0,))]
    places[index("model.half", (0,))] = replace(
        places[index("model.half", (0,))], offset=where.offset, data_at=where.data_at
    )


def no_zip(inside: Inside) -> None:
    inside.put(WEIGHT, 0, b"no zip", (0, 0))


def no_pickle(inside: Inside) -> None:
    inside.put(OBJECT, 0, b"no pickle")


def bomb(inside: Inside) -> None:
    inside.replace(OBJECT, Bomb())


@pytest.mark.parametrize(
    ("damage", "path", "wrong"),
    [
        (lost, WEIGHT, "at [0, 0]: missing: the file has no bytes of it"),
        (lost_object, OBJECT, "missing: the file has no bytes of it"),
        (undescribed, WEIGHT, "its metadata does not describe it"),
        (beyond, WEIGHT, "outside of the file"),
        (elsewhere, WEIGHT, "what a restore loads is not what its item holds"),
        (another_type, WEIGHT, "it holds torch.float32 [5, 7], its metadata says torch.int32 [5, 7]"),
        (short_rows, WEIGHT, "rows 4 to 5 of its box at [0, 0] lie in no item"),
        (outside, WEIGHT, "outside of [4, 7]"),
        (overlapping, "model.half", "its bytes begin inside those of"),
        (no_zip, WEIGHT, "stock torch cannot read its item"),
        (no_pickle, OBJECT, ""),
        (bomb, OBJECT, "it holds an object that a checkpoint is not trusted with"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_damage_in_meaning_is_found_with_its_path(
    damage: Callable[[Inside], None], path: str, wrong: str, tmp_path: Path
) -> None:
    """The digest of the file is right each time; the one thing that is wrong is named, and nothing else."""
    inside = Inside(shard(tmp_path, state()))
    damage(inside)
    found = problems(prove(inside.write()))
    if damage is overlapping:
        assert any("its bytes begin inside those of" in each for each in found.values()), found
        assert found.keys() <= {"model.half", "model.nan"}
        return
    assert found.keys() == {path}
    assert wrong in found[path]


def test_a_class_of_the_script_is_not_tested_and_no_failure(tmp_path: Path) -> None:
    """Not known here, and perhaps by the script; all else is proven."""
    inside = Inside(shard(tmp_path, {"loader": {"position": OfTheScript()}, "model": {"w": torch.ones(3)}}))
    path = inside.write()
    name = f"{OfTheScript.__module__}.OfTheScript"
    for allowed in (None, [name]):
        proof = prove(path, allowed)
        assert proof.ok, proof
        assert [each.path for each in proof.untested] == [OBJECT]
        assert name in proof.untested[0].wrong


def test_a_class_that_the_script_does_not_allow_fails(tmp_path: Path) -> None:
    """The script listed the classes it allows, and its own restore would refuse this one."""
    path = shard(tmp_path, {"loader": {"position": OfTheScript()}})
    assert "not trusted" in problems(prove(path, ["another.Class"]))[OBJECT]


def test_a_shard_shared_out_in_rows_is_proven(tmp_path: Path) -> None:
    """A box that lies in several items, as when ranks share a large tensor; a missing one is found."""
    path = shard(tmp_path, {"model": {"wide": torch.arange(12.0).reshape(6, 2)}})
    inside = Inside(path)
    split(inside.metadata, "model.wide")
    proof = prove(inside.write())
    assert "rows 0 to 3" in problems(proof)["model.wide"]


def split(metadata: Metadata, name: str) -> None:
    """Say that the one item has rows 3 to 6 only."""
    known = metadata.state_dict_metadata[name]
    (chunk,) = known.chunks
    place = metadata.storage_data.pop(index(name, tuple(chunk.offsets)))
    known.chunks[0] = replace(chunk, offsets=torch.Size((3, 0)), sizes=torch.Size((3, 2)))
    metadata.storage_data[index(name, (3, 0))] = replace(place, row=3, rows=6, data_nbytes=24)
