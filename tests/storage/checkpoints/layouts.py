"""A model with every kind of tensor under the layouts that large jobs combine: saved by Holdfast or by stock torch.

Run in rank processes by ``test_layouts.py``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.models.start_from import StartFrom
from holdfast.session import rng
from holdfast.session.restore import restore_remote
from holdfast.session.start_from import start_from
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter
from tests.session.kinds.tiers import Bucket
from tests.storage.checkpoints.parallelisms import check, fill, visit
from tests.storage.checkpoints.publish import publish
from tests.storage.checkpoints.upload import upload

WIDTH, HIDDEN, EXPERTS, LAYERS = 10, 13, 8, 2
STEP = 3


class Experts(nn.Module):
    """Weights of all experts of a layer, in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 3))


class Block(nn.Module):
    """A feed-forward block in bf16, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, dtype=torch.bfloat16)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.experts = Experts()


class Ends(nn.Module):
    """Tied, complex, frozen and unused parameters, few rows, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, WIDTH)
        self.head = nn.Linear(WIDTH, 7, bias=False)
        self.head.weight = self.tokens.weight
        self.waves = nn.Parameter(torch.zeros(5, 4, dtype=torch.complex64))
        self.few = nn.Parameter(torch.zeros(3, 2))  # of four ranks one has none of it
        self.frozen = nn.Parameter(torch.zeros(5, 2), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(6, 2))
        self.register_buffer("angles", torch.zeros(6, dtype=torch.complex64))


class Model(nn.Module):
    """The layers that are here, under the names of the whole model; the first stage has the ends."""

    def __init__(self, layers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Block() for number in layers})
        if 0 in layers:
            self.ends = Ends()


@dataclass(frozen=True)
class Layout:
    """How many ranks hold what; 1 where a dimension is not used."""

    stages: int = 1
    replicate: int = 1
    shard: int = 1
    tp: int = 1
    ep: int = 1
    """Ranks that share the experts, out of those that the dense part is sharded over."""

    @property
    def ranks(self) -> int:
        """Number of ranks in all."""
        return self.stages * self.replicate * self.shard * self.tp


LAYOUTS = {
    "ddp": Layout(replicate=4),
    "fsdp": Layout(shard=4),
    "hsdp": Layout(replicate=2, shard=2),
    "tp_fsdp": Layout(shard=2, tp=2),
    "ep": Layout(shard=4, ep=4),
    "ep_fsdp": Layout(shard=4, ep=2),
    "ep_ddp": Layout(replicate=2, shard=2, ep=2),
    "pp_fsdp": Layout(stages=2, shard=2),
    "pp_dp_tp": Layout(stages=2, shard=2, tp=2),
    "hsdp_tp": Layout(replicate=2, shard=2, tp=2),
    "pp_ep": Layout(stages=2, shard=4, ep=2),
    "fsdp_8": Layout(shard=8),
}


def build(name: str) -> dict[str, Any]:
    """Model and AdamW under a layout, each trained parameter with a state, and the unused one without."""
    layout = LAYOUTS[name]
    meshes = _meshes(layout)
    stage = meshes.whole.get_coordinate()[0] if layout.stages > 1 else None
    model = Model(range(LAYERS) if stage is None else range(stage, stage + 1))
    _divide(model, layout, meshes)
    trained = [each for at, each in model.named_parameters() if each.requires_grad and "unused" not in at]
    # Of several meshes torch updates one tensor after the other.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, foreach=False)
    for each in trained:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@dataclass(frozen=True)
class _Meshes:
    whole: Any
    tp: Any
    ep: Any
    rest: Any
    """Of the ranks that share the dense part, those that hold the same experts."""
    dense: Any
    """The mesh that the dense part is sharded over, with its replicas."""


@cache
def _meshes(layout: Layout) -> _Meshes:
    """Make the meshes of a layout once: each has groups, and each group threads, until the process ends."""
    shape = (layout.stages, layout.replicate, layout.shard // layout.ep, layout.ep, layout.tp)
    whole = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "replicate", "rest", "ep", "tp"))
    if layout.ep > 1:
        dense = whole["rest", "ep"]._flatten("dense")
    else:
        dense = whole["replicate", "rest"] if layout.replicate > 1 else whole["rest"]
    return _Meshes(whole, whole["tp"], whole["ep"], whole["rest"], dense)


def _divide(model: Model, layout: Layout, meshes: _Meshes) -> None:
    for block in model.layers.values():
        if layout.tp > 1:
            parallelize_module(block, meshes.tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if layout.ep > 1:
            experts = block.experts
            experts.weight = nn.Parameter(distribute_tensor(experts.weight.data, meshes.ep, [Shard(0)]))
            if layout.shard > layout.ep:
                fully_shard(experts, mesh=meshes.rest)
    if layout.shard == 1 or (layout.replicate > 1 and layout.ep > 1):
        return  # all of it, but for the experts, is on every rank
    alone = {block.experts.weight for block in model.layers.values()} if layout.ep > 1 else set()
    for block in model.layers.values():
        fully_shard(block, mesh=meshes.dense, ignored_params=alone)
    fully_shard(model, mesh=meshes.dense, ignored_params=alone)


def ours(layout: str, folder: Path) -> None:
    """Save as a Session does, and put together what agents would put into S3. Collective."""
    state, rank = build(layout), dist.get_rank()
    visit(state, filled)
    tree = StateTree(state, rank, dist.get_world_size())
    items = tree.flat() | rng.items(rank)
    planned = make_plan(
        items,
        folder / "shards",
        1,
        1,
        private=(rng.key(rank), *tree.private),
        paths=tree.paths | rng.paths(rank),
    )
    writer = ShardWriter(planned.layout, Owner("gpt", 1, rank, dist.get_world_size()), folder / "shards")
    contents = writer.collect(items)
    assert contents is not None
    writer.save(contents, STEP)
    dist.barrier()
    if rank == 0:
        publish(folder / "shards", STEP, folder / "whole")
    dist.barrier()


def stock(layout: str, folder: Path) -> None:
    """Save with stock torch. Collective."""
    state = build(layout)
    visit(state, filled)
    dcp.save(StateTree(state).nested(), checkpoint_id=folder / "whole")


def by_holdfast(layout: str, folder: Path) -> None:
    """Load what :func:`ours` saved from S3, the ranks together."""
    state = fresh(layout)
    bucket: Any = Bucket()
    saved = upload(bucket, folder / "whole", step=STEP)
    restore_remote(state, RemoteReader(bucket, saved.key, job="gpt", step=STEP), dist.get_rank())
    require_expected(state)


def by_stock_torch(layout: str, folder: Path) -> None:
    """Load with ``dcp.load``."""
    state = fresh(layout)
    dcp.load(StateTree(state).nested(), checkpoint_id=folder / "whole")
    require_expected(state)


def by_start_from(layout: str, folder: Path) -> None:
    """Start a job from what :func:`stock` saved."""
    state = fresh(layout)
    source = StartFrom(path=str(folder / "whole"), parts={"model": "model", "optimizer": "optimizer"})
    start_from(source, state, dist.get_rank(), {})
    require_expected(state)


def filled(name: str, each: Tensor) -> None:
    """Fill in what is expected; tied parameters hold the same."""
    fill(_value(name), each)


def _value(name: str) -> str:
    return name.replace("head.weight", "tokens.weight")


def fresh(layout: str) -> dict[str, Any]:
    """The state with another value in every element."""
    state = build(layout)

    def spoil(_: str, each: Tensor) -> None:
        with torch.no_grad():
            (each.to_local() if isinstance(each, DTensor) else each).fill_(-1)

    visit(state, spoil)
    return state


def require_expected(state: Mapping[str, Any]) -> None:
    """See that every element is where it belongs, ties are ties, and what had no state has none."""
    visit(dict(state), lambda name, each: check(_value(name), each))
    model, optimizer = state["model"], state["optimizer"]
    of = {name: optimizer.state.get(each, {}) for name, each in model.named_parameters()}
    assert {name for name, each in of.items() if not each} == {
        name for name in of if name in ("ends.frozen", "ends.unused")
    }
    if hasattr(model, "ends"):
        assert model.ends.head.weight is model.ends.tokens.weight
        assert not model.ends.frozen.requires_grad


SAVES: dict[str, Callable[[str, Path], None]] = {"ours": ours, "stock": stock}
LOADS: dict[str, Callable[[str, Path], None]] = {
    "holdfast": by_holdfast,
    "stock torch": by_stock_torch,
    "start_from": by_start_from,
}
Cell = tuple[str, str, str, str]
"""Saving world and layout, loading world and layout."""


def cells(folder: Path, wanted: list[Cell]) -> dict[Cell, str]:
    """Save each layout once, and load it by each cell; the errors, by cell. Collective."""
    for who, layout in sorted({cell[:2] for cell in wanted}):
        SAVES[who](layout, folder / f"{who}-{layout}")
    dist.barrier()
    return {cell: _found(cell, folder) for cell in wanted}


def load_cells(folder: Path, wanted: list[Cell]) -> dict[Cell, str]:
    """Load what :func:`cells` of other ranks saved."""
    return {cell: _found(cell, folder) for cell in wanted}


def _found(cell: Cell, folder: Path) -> str:
    who, saved, by, layout = cell
    try:
        LOADS[by](layout, folder / f"{who}-{saved}")
    except Exception as error:
        return f"{type(error).__name__}: {error}" + "".join(traceback.format_tb(error.__traceback__)[-2:])
    return ""
