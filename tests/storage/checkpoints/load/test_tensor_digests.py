"""Digests of what a shard file holds: the same for replicas, whatever their files look like, and of every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from holdfast.errors import CheckpointError
from holdfast.models.replica import REST, StateDigests
from holdfast.storage.checkpoints.format.layout import ShardLayout, lay_out
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.load import tensor_digests as module
from holdfast.storage.checkpoints.load.held import HeldEntry
from holdfast.storage.checkpoints.load.tensor_digests import tensor_digests
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter

pytestmark = pytest.mark.torch


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "model": {"w": torch.randn(6, 5), "half": torch.randn(7).bfloat16(), "count": torch.tensor(3)},
        "optimizer": {"state": {"w": {"exp_avg": torch.randn(6, 5)}}},
        "loader": {"position": 3},
        "own/0.model": {"running_mean": torch.randn(3)},
        "rng/0": {"torch": torch.arange(9)},
    }


def save(folder: Path, values: dict[str, Any], layout: ShardLayout | None = None) -> Path:
    planned = layout or make_plan(values, folder, epoch=1, number=1).layout
    writer = ShardWriter(planned, Owner("gpt", 1, 0, 1), folder)
    contents = writer.collect(flatten_state_dict(values)[0])
    assert contents is not None
    return writer.save(contents, 4)


def test_tensors_of_several_elements_by_name_and_box(tmp_path: Path) -> None:
    """Numbers and objects are none of it; parts say which part they are."""
    found = tensor_digests(save(tmp_path, state()))
    assert found.keys() == {"model.half", "model.w", "optimizer.state.w.exp_avg"}
    assert module._path(HeldEntry("w", (6, 5), torch.float32, ((2, 0), (2, 5)))) == "w[2:4, 0:5]"


def test_the_file_of_another_replica_says_the_same(tmp_path: Path) -> None:
    """It owns other rows, and has them in another order."""
    values = state()
    first = make_plan(values, tmp_path / "a", epoch=1, number=1).layout
    pieces = [each.piece for each in first.items]
    cut = []
    for piece in reversed(pieces):
        if piece.fqn == "model.w":
            cut += [_rows(piece, 4, 6), _rows(piece, 0, 4)]
        else:
            cut.append(piece)
    other = lay_out("other", cut[:3], cut[3:], {})
    assert tensor_digests(save(tmp_path / "b", values, other)) == tensor_digests(
        save(tmp_path / "a", values, first)
    )


def _rows(piece: Any, start: int, stop: int) -> Any:
    from dataclasses import replace  # noqa: PLC0415

    return replace(piece, start=start, stop=stop)


def test_one_bit_is_another_digest(tmp_path: Path) -> None:
    """Of its tensor, and of no other."""
    values, flipped = state(), state()
    flipped["model"]["w"].view(torch.uint8).reshape(-1)[17] ^= 1
    before, after = (
        tensor_digests(save(tmp_path / "a", values)),
        tensor_digests(save(tmp_path / "b", flipped)),
    )
    assert {name for name in before if before[name] != after[name]} == {"model.w"}


def test_more_paths_than_are_reported_are_reported_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a bit in them shows."""
    monkeypatch.setattr(module, "MOST_PATHS", 1)
    values, flipped = state(), state()
    flipped["optimizer"]["state"]["w"]["exp_avg"].view(torch.uint8).reshape(-1)[0] ^= 1
    before, after = (
        tensor_digests(save(tmp_path / "a", values)),
        tensor_digests(save(tmp_path / "b", flipped)),
    )
    assert len(before) == 2
    assert {name for name in before if before[name] != after[name]} == {REST}


def test_no_shard_is_an_error(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(CheckpointError, match="missing"):
        tensor_digests(tmp_path / "r0-a.shard")


def test_written_and_read_back() -> None:
    """Ranks that hold the same share one list of paths."""
    held = {0: {"a": 1, "b": 2**64 - 1}, 1: {"b": 3, "a": 0}, 2: {"a[0:1]": 7}}
    digests = StateDigests.model_validate_json(StateDigests.of(5, held).model_dump_json())
    assert digests.by_rank() == held
    assert len(digests.paths) == 2
    assert [each.by_rank() for each in digests.parts()] == [{0: held[0], 1: held[1]}, {2: held[2]}]


@pytest.mark.parametrize("broken", [{"digests": "AAA"}, {"digests": "AAAA"}, {"paths": 1}, {"digests": ""}])
def test_what_does_not_fit_together_is_refused(broken: dict[str, Any]) -> None:
    """At the door."""
    digests = StateDigests.of(5, {0: {"a": 1}}).model_dump()
    digests["ranks"] = [dict(digests["ranks"][0]) | broken]
    with pytest.raises(ValueError, match=r"rank 0|digests"):
        StateDigests.model_validate(digests)
