"""A Session's save is proven as a rehearsal does it: trees, tensors, random state; missing parts are named."""

from __future__ import annotations

import collections
import dataclasses
import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.session import rng
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.load.findings import Findings
from holdfast.storage.checkpoints.load.prove import prove
from holdfast.storage.checkpoints.load.prove_tree import prove_tree
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter
from tests.storage.checkpoints.load.test_prove import Inside

pytestmark = pytest.mark.torch

Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Cursor:
    at: int
    buffer: torch.Tensor


class Loader:
    def __init__(self) -> None:
        self.held: dict[str, Any] = {
            "tokens": [torch.arange(n) for n in range(5)],
            "large": torch.randn(200, 100),
            "queue": collections.deque([1, "two", torch.ones(2)], maxlen=4),
            "point": Point(1, torch.zeros(3)),
            "colour": Colour.RED,
            "cursor": Cursor(3, torch.randn(7)),
            "keys": {1: "a", (2, 3): None, "b": {4}},
            "bits": np.random.default_rng(3),
            "generator": torch.Generator().manual_seed(4),
            "raw": bytearray(b"xyz"),
            "nan": [float("nan"), float("inf")],
        }

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


def saved(folder: Path) -> Path:
    """A shard of a state of many kinds, as the Session writes it."""
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 4))
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])
    model(torch.randn(8, 40)).sum().backward()
    optimizer.step()
    tree = StateTree({"model": model, "optimizer": optimizer, "schedule": schedule, "loader": Loader()})
    items = tree.flat() | rng.items(0)
    paths, private = tree.paths | rng.paths(0), (rng.key(0), *tree.private)
    planned = make_plan(items, folder, 1, 1, private=private, paths=paths)
    writer = ShardWriter(planned.layout, Owner("gpt", 1, 0, 1), folder)
    contents = writer.collect(items)
    assert contents is not None
    return writer.save(contents, 4)


def test_a_state_of_many_kinds_is_proven(tmp_path: Path) -> None:
    """All of it, here where the classes are known."""
    proof = prove(saved(tmp_path))
    assert proof.ok, proof
    assert proof.untested == ()


def test_a_tensor_that_the_structure_names_and_that_is_not_there(tmp_path: Path) -> None:
    """It is in neither the bytes nor the description: only the tree still knows of it."""
    inside = Inside(saved(tmp_path))
    name = "model.0.weight"
    del inside.metadata.state_dict_metadata[name]
    for index in [each for each in inside.metadata.storage_data if each.fqn == name]:
        del inside.metadata.storage_data[index]
    proof = prove(inside.write())
    assert [each.path for each in proof.problems] == [name]
    assert "the structure of the state names it" in proof.problems[0].wrong


def test_a_class_that_is_gone_is_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an agent, which has none of the script's classes: reported, and no failure."""
    path = saved(tmp_path)
    monkeypatch.delattr(f"{__name__}.Cursor")
    proof = prove(path)
    assert proof.ok, proof
    assert [each.path for each in proof.untested] == ["loader"]
    assert "Cursor" in proof.untested[0].wrong


def test_a_tensor_of_a_gpu_in_a_tree_is_proven_on_the_host() -> None:
    """Ranks have their GPUs for themselves: no proof opens one, and here there is none."""
    places = "@raw", 1, bytes(16), "int64", (1, 2), (2, 1), 0, "cuda"
    values = "@raw", 2, bytes(8), "float32", (2,), (1,), 0, "cuda"
    tree = {
        "plain": values,
        "sparse": ("@layout", "torch.sparse_coo", [places, values], ((3,), False), "cuda"),
    }
    found = Findings(None)
    prove_tree("structure/0.loader", tree, {}, found)
    proof = found.proof(seconds=0.0)
    assert proof.ok, proof
    assert proof.untested == ()
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("of_a_class", [False, True])
def test_what_cannot_be_made_is_wrong_unless_a_class_makes_it(of_a_class: bool) -> None:
    """An array whose bytes are none would fail at the restore as well; a class's code may need what is not here."""
    node: Any = ("ndarray", ("@plain", (b"no array", True)))
    if of_a_class:
        node = ("enum", ((__name__, "Colour"), None, 99))
    found = Findings(None)
    prove_tree("structure/0.loader", node, {}, found)
    assert [each.path for each in (found.untested if of_a_class else found.problems)] == ["loader"]
    assert not (found.problems if of_a_class else found.untested)
