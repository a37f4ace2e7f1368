"""The same model and optimizer under every parallelism, over gloo, with values that encode their origin.

Run in rank processes by ``test_resharding.py``.
"""

from __future__ import annotations

import copy
import os
import sys
import traceback
import zlib
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.models.start_from import StartFrom
from holdfast.session.restore import restore_remote
from holdfast.session.start_from import start_from
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.flat import FlatShard, flat_shards
from holdfast.storage.checkpoints.remote.remote_reader import LoadReport, RemoteReader
from holdfast.storage.objects.s3 import S3Store

WIDTH, HIDDEN, LAYERS = 48, 1031, 4  # a hidden size that no number of ranks divides


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)


class Model(nn.Module):
    """Blocks under the names that they have in the whole model, whichever of them are here."""

    def __init__(self, layers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Block() for number in layers})


def ddp(model: Model) -> None:
    """Every rank has everything."""


def fsdp(model: Model) -> None:
    """Parameters sharded over all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def hsdp(model: Model) -> None:
    """Sharded over pairs, replicated over pairs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _split(model: Model, mesh: Any) -> None:
    for layer in model.layers.values():
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tp(model: Model) -> None:
    """Tensor parallel: rows of one layer, columns of the other."""
    _split(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def tp_fsdp(model: Model) -> None:
    """Tensor parallel in pairs, sharded over the pairs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    _split(model, mesh["tp"])
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


PARALLELISMS: dict[str, Callable[[Model], None]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "tp": tp,
    "tp_fsdp": tp_fsdp,
    "pp": ddp,
    "pp_moved": ddp,
    "flat": ddp,
}


class FlatAdam:
    """The state of AdamW over all parameters in one padded buffer per slot, of which each rank has a range."""

    def __init__(self, model: Model) -> None:
        self._shapes = {name: each.shape for name, each in model.named_parameters()}
        rank, size = dist.get_rank(), dist.get_world_size()
        # Padding belongs to no tensor, and no cut is at the edge of one.
        each = -(-(sum(shape.numel() for shape in self._shapes.values()) + 5) // size)
        self._start = rank * each
        self._slots = {slot: torch.zeros(each) for slot in ("exp_avg", "exp_avg_sq")}
        self._steps = {name: torch.zeros(()) for name in self._shapes}
        like = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self._groups = StateTree({"model": model, "optimizer": like}).nested()["optimizer"]["param_groups"]

    def state_dict(self) -> dict[str, Any]:
        """Under the names that AdamW's state has."""
        state: dict[str, dict[str, Any]] = {name: {"step": step} for name, step in self._steps.items()}
        for slot, buffer in self._slots.items():
            for name, part in flat_shards(self._shapes, buffer, self._start).items():
                state[name][slot] = part
        # A load puts into these what another stage saved as its groups.
        return {"state": state, "param_groups": copy.deepcopy(self._groups)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Parts and steps were loaded in place."""


def build(kind: str) -> dict[str, Any]:
    """Model and optimizer under the parallelism ``kind``."""
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = range(LAYERS)
    if kind == "pp":  # two stages
        layers = range(2) if rank < size // 2 else range(2, LAYERS)
    elif kind == "pp_moved":  # stages cut elsewhere, and in the other order
        layers = range(1, LAYERS) if rank < size // 2 else range(1)
    model = Model(layers)
    PARALLELISMS[kind](model)
    if kind == "flat":
        return {"model": model, "optimizer": FlatAdam(model)}
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)}


def expected(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The whole tensor of that name: every element encodes its name and place."""
    base = zlib.crc32(name.encode()) % 1000
    return (torch.arange(shape.numel(), dtype=torch.float64) % 65_536 + base).reshape(shape).to(dtype)


def visit(state: dict[str, Any], act: Callable[[str, Tensor], None]) -> None:
    """Each tensor with its full name."""
    nested = StateTree(state).nested()
    for name, each in nested["model"].items():
        act(name, each)
    for name, values in nested["optimizer"]["state"].items():
        for slot, each in values.items():
            act(f"{name}.{slot}", each)


def fill(name: str, each: Tensor) -> None:
    """Put in what is expected."""
    with torch.no_grad():
        if isinstance(each, DTensor):
            whole = expected(name, each.shape, each.dtype)
            each.to_local().copy_(_mine(each, whole))
        elif isinstance(each, FlatShard):
            each.local.copy_(_range(each, expected(name, each.shape, each.dtype)))
        else:
            each.copy_(expected(name, each.shape, each.dtype))


def _mine(like: DTensor, whole: Tensor) -> Tensor:
    """This rank's part of ``whole``."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415

    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return whole[tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))]


def _range(like: FlatShard, whole: Tensor) -> Tensor:
    """The elements of ``whole`` that lie in this rank's range."""
    first = like.boxes[0].offsets
    start = sum(at * step for at, step in zip(first, whole.stride(), strict=True))
    return whole.flatten()[start : start + like.local.numel()]


def check(name: str, each: Tensor) -> None:
    """See that it holds what is expected."""
    whole = expected(name, each.shape, each.dtype)
    if isinstance(each, FlatShard):
        assert torch.equal(each.local, _range(each, whole)), f"{name}: differs"
        return
    local = each.to_local() if isinstance(each, DTensor) else each
    wanted = _mine(each, whole) if isinstance(each, DTensor) else whole
    assert torch.equal(local, wanted), f"{name}: differs"


def save(kind: str, folder: Path) -> None:
    """Save with stock torch. Collective."""
    state = build(kind)
    visit(state, fill)
    nested = StateTree(state).nested()
    nested[f"rng/{dist.get_rank()}"] = {"torch": torch.get_rng_state()}
    dcp.save(nested, checkpoint_id=folder)


def load(kind: str, store: S3Store, key: str) -> LoadReport:
    """Load from S3, and see that every value is where it belongs. Collective."""
    state = build(kind)
    report = restore_remote(state, RemoteReader(store, key, job="gpt"), dist.get_rank())
    visit(state, check)
    groups = StateTree(state).nested()["optimizer"]["param_groups"]
    held = [name for name, _ in state["model"].named_parameters()]
    assert sorted(groups[0]["params"]) == sorted(held), "the groups have this stage's parameters"
    return report


def main(place: tuple[int, int, int], body: str, args: dict[str, Any], results: Any) -> None:
    """Body of a rank process: run the function ``body`` of this module, or ``module:function``; send its result.

    ``place`` is (rank, world size, port of the rendezvous).
    """
    rank, size, port = place
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=240))
        module, _, name = body.rpartition(":")
        results.put((rank, getattr(import_module(module or __name__), name)(**args)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, RuntimeError(traceback.format_exc())))
        sys.exit(1)


def save_all(kinds: list[str], folder: Path) -> None:
    """A checkpoint per parallelism."""
    for kind in kinds:
        save(kind, folder / kind)


def load_all(pairs: list[tuple[str, str]], store: dict[str, str]) -> dict[str, LoadReport]:
    """Load each (name of the load, kind, key)."""
    opened = S3Store(**store)  # type: ignore[arg-type]
    return {f"{key}->{kind}": load(kind, opened, key) for key, kind in pairs}


def start_from_all(pairs: list[tuple[str, str]], folder: Path) -> None:
    """Start from each checkpoint of stock torch in ``folder`` (by its kind) under another kind."""
    for saved, kind in pairs:
        state = build(kind)
        source = StartFrom(path=str(folder / saved), parts={"model": "model", "optimizer": "optimizer"})
        start_from(source, state, dist.get_rank(), {})
        visit(state, check)


def load_stock(pairs: list[tuple[str, str]], url: str, options: dict[str, Any]) -> None:
    """Load each (key, kind) with torch's own reader, and see that every value is where it belongs."""
    for key, kind in pairs:
        state = build(kind)
        dcp.load(StateTree(state).nested(), storage_reader=FsspecReader(url + key, **options))
        visit(state, check)


def load_refused(key: str, store: dict[str, str], kind: str) -> tuple[str, str]:
    """The error that this rank raised."""
    try:
        load(kind, S3Store(**store), key)  # type: ignore[arg-type]
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""
