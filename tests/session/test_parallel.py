"""Every parallelism that torch has, and flat shards: saved without a gather, loaded by stock torch and by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from holdfast.storage.checkpoints.save import buffers
from tests.session.conftest import MakeAgent
from tests.storage.checkpoints.publish import publish, stock_load

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).with_name("scripts") / "parallel.py"


def whole(folder: Path, ranks: int, when: str = "whole") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rank in reversed(range(ranks)):  # running statistics differ: under the plain names are rank 0's
        found |= torch.load(folder / f"{when}-{rank}.pt")
    return found


def owns(folder: Path, ranks: int, saved: dict[str, Any]) -> dict[str, Any]:
    """By the names that they are saved under: what a rank has otherwise than rank 0."""
    found = {}
    for rank in range(ranks):
        held = torch.load(folder / f"whole-{rank}.pt")
        found |= {f"own/{rank}.{name}": each for name, each in held.items() if f"own/{rank}.{name}" in saved}
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("ddp", 3), ("fsdp", 3), ("hsdp", 4), ("tp", 2), ("fsdp-tp", 4), ("pp", 2), ("zero", 3)],
)
def test_stock_torch_reads_what_ranks_saved(
    make_agent: MakeAgent, tmp_path: Path, kind: str, ranks: int
) -> None:
    """The parts of all ranks are the whole state, each saved once; from memory each rank goes on as it was."""
    agent = make_agent(ranks)
    agent.start(SCRIPT, [kind, 3, tmp_path])
    assert agent.join() == [0] * ranks, agent.output()
    expected = whole(tmp_path, ranks)
    loaded, _ = flatten_state_dict(stock_load(publish(agent.shards, 3, tmp_path / "ckpt")))
    tensors = {
        name: each for name, each in loaded.items() if isinstance(each, torch.Tensor) and "rng" not in name
    }
    stored = expected | owns(tmp_path, ranks, tensors)
    assert tensors.keys() == stored.keys()
    assert all("running" in name for name in stored.keys() - expected.keys())
    assert [name for name in stored if not torch.equal(tensors[name], stored[name])] == []
    nbytes = sum(each.nbytes for each in stored.values())
    owned = [each.owned_nbytes for _, each in buffers.inventory(agent.shards) if each.step == 3]
    assert sum(owned) < nbytes + ranks * 120_000 + 2_000 * len(loaded)

    agent.start(SCRIPT, [kind, 3, tmp_path], lambda rank: (3, agent.shard(rank, 3)))
    assert agent.join() == [0] * ranks, agent.output()
    again = whole(tmp_path, ranks)
    assert all(torch.equal(again[name], each) for name, each in expected.items())


@pytest.mark.parametrize(
    ("saved", "loaded", "ranks"),
    [
        ("fsdp", "tp", 2),
        pytest.param("pp", "ddp", 2, marks=pytest.mark.thorough),
        pytest.param("ddp", "pp", 2, marks=pytest.mark.thorough),
        pytest.param("fsdp-tp", "hsdp", 4, marks=pytest.mark.thorough),
    ],
)
def test_another_layout_goes_on_from_the_shards_of_all_ranks(
    make_agent: MakeAgent, tmp_path: Path, saved: str, loaded: str, ranks: int
) -> None:
    """A code update changes the parallelism: no element stays as the fresh process made it, and saves go on."""
    agent = make_agent(ranks)
    agent.start(SCRIPT, [saved, 2, tmp_path])
    assert agent.join() == [0] * ranks, agent.output()
    expected = whole(tmp_path, ranks)

    agent.start(SCRIPT, [loaded, 3, tmp_path], lambda rank: (2, agent.shard(rank, 2)))
    assert agent.join() == [0] * ranks, agent.output()
    again = whole(tmp_path, ranks, "restored")
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], each) for name, each in expected.items())
    after = whole(tmp_path, ranks)
    stock, _ = flatten_state_dict(stock_load(publish(agent.shards, 3, tmp_path / "ckpt")))
    # Each rank goes on with its own random state, so what tensor-parallel ranks hold twice is not the same any more.
    sharded = [name for name in after if "second.weight" in name or "last.weight" in name]
    assert sharded
    assert all(torch.equal(stock[name], after[name]) for name in sharded)
