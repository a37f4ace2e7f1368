"""A checkpoint in S3 is proven from end to end; a part that would not come back is reported with its path, or file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from holdfast.models.checkpoint import RemoteCheckpoint
from holdfast.models.rehearsal import Proof
from holdfast.storage.checkpoints.format.overlaps import inside, overlap
from holdfast.storage.checkpoints.remote.prove_remote import prove_remote
from holdfast.storage.objects.s3 import S3Store
from tests.storage.checkpoints.upload import upload

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]

WEIGHT, POSITION = "model.weight", "loader.position"


class OfTheScript:
    """A class that the script knows."""


def state() -> dict[str, Any]:
    return {
        "model": {"weight": torch.randn(30, 11), "empty": torch.empty(0, 4), "count": torch.tensor(3)},
        "loader": {"position": 17, "own": OfTheScript()},
    }


def stored(
    objects: S3Store, folder: Path, damage: Callable[[Metadata], None] = lambda _: None
) -> RemoteCheckpoint:
    dcp.save(state(), checkpoint_id=folder)
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    damage(metadata)
    path.write_bytes(pickle.dumps(metadata))
    # Damage in meaning is put into the stock form; with the compact one beside it that would not be read.
    return upload(objects, folder, compact=False)


def problems(proof: Proof) -> dict[str, str]:
    assert proof.ok is not bool(proof.problems)
    return {each.path: each.wrong for each in proof.problems}


def test_a_whole_checkpoint_is_proven(objects: S3Store, tmp_path: Path) -> None:
    """All but what only the script can load, which is reported."""
    proof = prove_remote(objects, stored(objects, tmp_path / "c").key)
    assert proof.ok, proof
    assert [each.path for each in proof.untested] == ["loader.own"]
    assert proof.items == 5
    assert proof.nbytes > 0


def test_a_class_that_the_script_does_not_allow(objects: S3Store, tmp_path: Path) -> None:
    """Known from the script itself: its restore would fail."""
    assert "loader.own" in problems(prove_remote(objects, stored(objects, tmp_path / "c").key, []))


def test_a_flipped_bit_is_found_in_its_file(objects: S3Store, tmp_path: Path) -> None:
    """By the manifest's digest."""
    key = stored(objects, tmp_path / "c").key
    where = f"{key}__0_0.distcp"
    data = bytearray(objects.get(where))
    data[len(data) // 2] ^= 1
    objects.put(where, bytes(data))
    assert "file __0_0.distcp: digest" in problems(prove_remote(objects, key))[""]


def test_no_checkpoint_is_no_proof(objects: S3Store) -> None:
    """Its upload never ended."""
    assert "never ended" in problems(prove_remote(objects, "gpt/checkpoints/step-0000000004-e1/"))[""]


def lost(metadata: Metadata) -> None:
    del metadata.storage_data[MetadataIndex(WEIGHT, torch.Size((0, 0)))]


def lost_object(metadata: Metadata) -> None:
    del metadata.storage_data[MetadataIndex(POSITION)]


def uncovered(metadata: Metadata) -> None:
    chunks = metadata.state_dict_metadata[WEIGHT].chunks
    chunks[0] = replace(chunks[0], sizes=torch.Size((29, 11)))


def doubled(metadata: Metadata) -> None:
    known = metadata.state_dict_metadata[WEIGHT]
    known.chunks[:] = [
        replace(known.chunks[0], sizes=torch.Size((15, 11))),
        replace(known.chunks[0], offsets=torch.Size((14, 0)), sizes=torch.Size((15, 11))),
    ]


def beyond(metadata: Metadata) -> None:
    index = MetadataIndex(WEIGHT, torch.Size((0, 0)))
    metadata.storage_data[index] = replace(metadata.storage_data[index], offset=1 << 40)


@pytest.mark.parametrize(
    ("damage", "path", "wrong"),
    [
        (lost, WEIGHT, "missing: no file has its bytes"),
        (lost_object, POSITION, "missing: no file has its bytes"),
        (uncovered, WEIGHT, "its parts have 319 of 330 elements"),
        (doubled, WEIGHT, "at [0, 0] and [14, 0] overlap"),
        (beyond, WEIGHT, "outside of the checkpoint's files"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_damage_in_meaning_is_found_with_its_path(
    damage: Callable[[Metadata], None], path: str, wrong: str, objects: S3Store, tmp_path: Path
) -> None:
    """Every digest is right, and the one thing that is wrong is named."""
    found = problems(prove_remote(objects, stored(objects, tmp_path / "c", damage).key))
    assert found.keys() == {path}
    assert wrong in found[path]


@given(
    st.lists(
        st.tuples(
            st.tuples(st.integers(0, 4), st.integers(0, 4)), st.tuples(st.integers(0, 3), st.integers(0, 3))
        ),
        max_size=6,
    )
)
def test_overlap_is_what_counting_elements_finds(
    boxes: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    """The sweep against the plain way."""
    cells = [
        (row, column)
        for (top, left), (high, wide) in boxes
        for row in range(top, top + high)
        for column in range(left, left + wide)
    ]
    assert (overlap(boxes) is not None) is (len(set(cells)) < len(cells))


def test_inside_is_within_every_dimension() -> None:
    """Also at the border, and of as many dimensions."""
    assert inside((1, 2), (2, 2), (3, 4))
    assert not inside((2, 2), (2, 2), (3, 4))
    assert not inside((0,), (1,), (3, 4))
