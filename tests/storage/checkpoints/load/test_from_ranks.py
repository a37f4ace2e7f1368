"""Saved under one layout, loaded under another by the same number of ranks, from one another's shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.storage.checkpoints.load import from_ranks
from holdfast.storage.objects.s3 import S3Store
from tests.storage.checkpoints.test_resharding import bucket, ranks
from tests.storage.checkpoints.upload import upload

__all__ = ["bucket"]

pytestmark = pytest.mark.e2e

LAYOUTS = ["ddp", "fsdp", "hsdp", "tp", "two_d"]
BODIES = "tests.storage.checkpoints.resharded"


PAIRS = [(saved, loaded) for saved in LAYOUTS for loaded in LAYOUTS]
SPOILT = {
    "damaged": ("CheckpointError", "rank 2: shard of rank 2 at step 3"),
    "another step": ("CheckpointError", "the shards are not of one save: rank 0 has Saved"),
    "another key": ("UncoveredError", "rank 2: model.new: Missing key in checkpoint"),
    "another size": (
        "CheckpointError",
        "rank 2: model.frozen: it was saved with the size [5], the state has [6]",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Results of four ranks, by function of :mod:`tests.storage.checkpoints.resharded`."""
    calls: dict[str, dict[str, Any]] = {
        "all_pairs": {"pairs": PAIRS, "round_nbytes": 1},
        "unchecked": {"saved": "fsdp", "loaded": "tp"},
        "errors": {"spoils": list(SPOILT)},
        "one_without": {},
    }
    for name, args in calls.items():
        args["folder"] = tmp_path_factory.mktemp(name)
    each = ranks(4, f"{BODIES}:several", calls=calls)
    return {name: [found[name] for found in each] for name in calls}


def test_every_layout_loads_what_every_other_saved(results: dict[str, list[Any]]) -> None:
    """Bit for bit, weights and optimizer; the own shard is refused where it is not enough, and used where it is."""
    for saved, loaded in PAIRS:
        each = [found[f"{saved}->{loaded}"] for found in results["all_pairs"]]
        enough = saved in ("ddp", loaded)
        assert [covered for covered, _ in each] == [enough] * 4, f"{saved} -> {loaded}"
        assert (sum(nbytes for _, nbytes in each) == 0) is enough, f"{saved} -> {loaded}: {each}"


def test_without_the_check_elements_stay_as_they_were(results: dict[str, list[Any]]) -> None:
    """The control: what torch's planner reads of the own shard leaves much of each rank's state fresh, silently."""
    assert all(left > 100 for left in results["unchecked"])


def test_what_one_rank_meets_is_refused_by_all(results: dict[str, list[Any]]) -> None:
    """No rank waits for the others, all report why, and no rank's tensors were touched."""
    for spoil, (kind, words) in SPOILT.items():
        raised = [each[spoil] for each in results["errors"]]
        assert [name for name, _, _ in raised] == [kind] * 4, raised
        assert all(words in text for _, text, _ in raised), raised
        assert all(untouched for _, _, untouched in raised)


def test_a_rank_without_a_shard_gets_all_from_the_others(results: dict[str, list[Any]]) -> None:
    """Of data-parallel ranks any other has it; those that have their own receive nothing."""
    assert results["one_without"][0] > 0
    assert results["one_without"][1:] == [0, 0, 0]


@pytest.mark.thorough  # test_resharding.py has another number of ranks
@pytest.mark.parametrize("size", [3, 6])
def test_another_number_of_ranks_loads_it(tmp_path: Path, size: int) -> None:
    """Fewer ranks hold several files each, more ranks some none: bit for bit, also into another layout."""
    layouts = ["ddp", "fsdp", "tp"]
    ranks(4, f"{BODIES}:save_all", folder=tmp_path, layouts=layouts)
    pairs = [(saved, loaded) for saved in layouts for loaded in layouts]
    results = ranks(size, f"{BODIES}:other_size", folder=tmp_path, pairs=pairs, saved_by=4)
    sharded = [number for number, (saved, _) in enumerate(pairs) if saved != "ddp"]
    assert all(each[number] > 0 for each in results for number in sharded), results


@pytest.mark.thorough
def test_all_ranks_take_the_same_way(bucket: dict[str, str], tmp_path: Path) -> None:
    """From their own shards; else all from one another's; else all from S3, if the step is there; else all refuse."""
    ranks(4, f"{BODIES}:save_weights", folder=tmp_path)
    remote = upload(S3Store(**bucket), tmp_path / "published", step=3, world_size=4)

    def restored(
        layout: str, key: str, lost: list[int], extra: bool = False
    ) -> list[tuple[str, str, dict[str, Any]]]:
        return ranks(
            4,
            f"{BODIES}:recovered",
            folder=tmp_path,
            layout=layout,
            store=bucket,
            key=key,
            lost=lost,
            extra=extra,
        )

    own = restored("fsdp", remote.key, [1])
    assert [cost["own"] for _, _, cost in own] == [True, False, True, True], own
    assert all(("read_nbytes" in cost) is (rank == 1) for rank, (_, _, cost) in enumerate(own)), own
    passed = restored("tp", "", [])
    assert all(not error and cost["from_ranks"] and not cost["own"] for error, _, cost in passed), passed
    remotely = restored("tp", remote.key, [1])
    assert all(not error and cost["tier"] == "s3" for error, _, cost in remotely), remotely
    refused = restored("tp", "", [], extra=True)
    assert [error for error, _, _ in refused] == ["UncoveredError"] * 4, refused
    assert all("model.extra" in text and "this step is not in S3" in text for _, text, _ in refused), refused


def test_what_cannot_be_read_keeps_no_rank_waiting() -> None:
    """The others are in the same rounds: the error comes after the last of them, on all."""

    def parts() -> Iterator[torch.Tensor]:
        yield torch.ones(2, dtype=torch.uint8)
        raise OSError("Input/output error")

    outgoing = from_ranks._Outgoing(parts(), 6)
    for _ in range(2):
        room = torch.full((3,), 7, dtype=torch.uint8)
        outgoing.give(room)
        assert room.tolist() == [0, 0, 0]
    assert outgoing.left == 0
    assert isinstance(outgoing.trouble, OSError)
