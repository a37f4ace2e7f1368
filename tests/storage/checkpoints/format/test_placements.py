"""Placements of distributed tensors, as plain data and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from holdfast.storage.checkpoints.format.tensor_facts import placements_of, plain_placements

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Replicate()),
        (Partial("avg"), Shard(2)),
        (_StridedShard(0, split_factor=2), Shard(0)),
        (_StridedShard(1, split_factor=8), Replicate(), Shard(1)),
    ],
    ids=str,
)
def test_placements_come_back(placements: tuple[Any, ...]) -> None:
    """Also those of FSDP2 over tensor parallel, whose rows are divided twice."""
    tensor: Any = SimpleNamespace(placements=placements)
    assert placements_of(plain_placements(tensor)) == placements


def test_a_placement_of_another_kind_is_not_guessed() -> None:
    """Its name alone is kept."""

    class Other:
        pass

    tensor: Any = SimpleNamespace(placements=(Other(),))
    assert placements_of(plain_placements(tensor)) is None
