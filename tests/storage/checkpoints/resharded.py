"""A model with all that torch's own distributed-checkpoint tests put into theirs, saved to shard files under one layout
and loaded under another by the same number of ranks. Run in rank processes by ``test_from_ranks.py``.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import UncoveredError
from holdfast.session.recovery import recover
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.load import safe_load
from holdfast.storage.checkpoints.load.exchange import Ballot, Exchange
from holdfast.storage.checkpoints.load.from_ranks import RanksReader, load_from_ranks
from holdfast.storage.checkpoints.load.reader import OwnShard
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from holdfast.storage.checkpoints.save import buffers
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter
from holdfast.storage.objects.s3 import S3Store
from tests.storage.checkpoints.parallelisms import check, expected, fill
from tests.storage.checkpoints.publish import publish

WIDTH, HIDDEN = 10, 13  # no number of ranks divides 13


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, dtype=dtype)
        self.down = nn.Linear(HIDDEN, WIDTH, dtype=dtype)


class Model(nn.Module):
    """Uneven and empty shards, tied, frozen and unused parameters, bf16, buffers with and without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block(torch.bfloat16)])
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, 7, bias=False)
        self.head.weight = self.tokens.weight
        self.few = nn.Parameter(torch.zeros(3, 2))  # of four ranks one has none of it
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        self.unused = nn.Parameter(torch.zeros(6, 2))


def ddp(model: Model) -> nn.Module:
    """Every rank has everything."""
    return DistributedDataParallel(model)


def _shard(model: Model, mesh: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp(model: Model) -> nn.Module:
    """Parameters sharded over all ranks."""
    return _shard(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def hsdp(model: Model) -> nn.Module:
    """Sharded over pairs, replicated over pairs."""
    return _shard(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def _split(model: Model, mesh: Any) -> Model:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def tp(model: Model) -> nn.Module:
    """Tensor parallel: rows of one layer, columns of the other."""
    return _split(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def two_d(model: Model) -> nn.Module:
    """Tensor parallel in pairs, sharded over the pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return _shard(_split(model, mesh["tp"]), mesh["dp"])


LAYOUTS: dict[str, Callable[[Model], nn.Module]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "tp": tp,
    "two_d": two_d,
}


def build(layout: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and its state and the optimizer's by full name; all of it zeros."""
    model = LAYOUTS[layout](Model())
    trained = [each for name, each in model.named_parameters() if each.requires_grad and "unused" not in name]
    optimizer = torch.optim.AdamW(trained, lr=0.0)
    for each in trained:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    names = {each: name.removeprefix("module.") for name, each in model.named_parameters()}
    flat = {f"model.{name}": each for name, each in get_model_state_dict(model).items()}
    for each, values in optimizer.state.items():
        flat |= {f"optimizer.state.{names[each]}.{slot}": value for slot, value in values.items()}
    return model, flat


def value_of(name: str) -> str:
    """The name that the values of a tensor encode: tied ones have the same."""
    return name.replace("head.weight", "tokens.weight")


def _path(folder: Path, layout: str) -> Path:
    found = [
        path for path, _ in buffers.inventory(folder / layout) if buffers.rank_of(path) == dist.get_rank()
    ]
    return found[-1]


def save(layout: str, folder: Path) -> None:
    """Make a shard file per rank, of values that encode their name and place. Collective."""
    model, flat = build(layout)
    for name, each in flat.items():
        fill(value_of(name), each)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, each in whole.items():
        assert torch.equal(each, expected(value_of(f"model.{name}"), each.shape, each.dtype)), name
    rank = dist.get_rank()
    flat |= {f"own/{rank}": f"position {7 * rank}", "config": 0.5}
    planned = make_plan(flat, folder / layout, 1, 1)
    writer = ShardWriter(planned.layout, Owner("gpt", 1, rank, dist.get_world_size()), folder / layout)
    contents = writer.collect(flat)
    assert contents is not None
    writer.save(contents, 3)


def target(layout: str) -> tuple[nn.Module, dict[str, Any]]:
    """The fresh state under a layout; what is not loaded is not what is expected."""
    model, flat = build(layout)
    for each in flat.values():
        local = each.to_local() if isinstance(each, DTensor) else each
        with torch.no_grad():
            local.fill_(-1)
    return model, flat | {f"own/{dist.get_rank()}": None, "config": None}


def require_expected(model: nn.Module, flat: dict[str, Any]) -> None:
    """Every element of model and optimizer is where it belongs, also as stock torch gathers it."""
    rank = dist.get_rank()
    assert flat.pop(f"own/{rank}") == f"position {7 * rank}"
    assert flat.pop("config") == 0.5
    for name, each in flat.items():
        check(value_of(name), each)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    gathered = {
        name: each.full_tensor() if isinstance(each, DTensor) else each
        for name, each in flat.items()
        if name.startswith("optimizer")
    } | {f"model.{name}": each for name, each in whole.items()}
    assert gathered.keys() == flat.keys()
    for name, each in gathered.items():
        assert torch.equal(each, expected(value_of(name), each.shape, each.dtype)), (
            f"{name}: stock torch sees another"
        )


def own_covers(path: Path, flat: dict[str, Any]) -> bool:
    """Whether the ranks' own shards are enough; if not, no tensor of any rank was touched."""
    try:
        ballot = Ballot(Exchange(alone=False), "own")
        with ballot.open():
            OwnShard(path, ballot).load(lambda _: flat)
    except UncoveredError:
        held = (each.to_local() if isinstance(each, DTensor) else each for each in flat.values())
        if any(isinstance(each, Tensor) and bool((each != -1).any()) for each in held):
            raise AssertionError("something was copied") from None
        return False
    return True


def several(calls: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Call functions of this module one after the other, each with its arguments: ranks take longest to start."""
    return {name: globals()[name](**args) for name, args in calls.items()}


def all_pairs(folder: Path, pairs: list[tuple[str, str]], round_nbytes: int) -> dict[str, tuple[bool, int]]:
    """Save under each layout, load under each; whether the own shards were enough, and bytes received from others."""
    for layout in sorted({saved for saved, _ in pairs}):
        save(layout, folder)
    found = {}
    for saved, loaded in pairs:
        path, exchange = _path(folder, saved), Exchange(alone=False)
        enough = own_covers(path, target(loaded)[1])
        model, flat = target(loaded)
        reader = RanksReader([path], exchange, round_nbytes=round_nbytes)
        load_from_ranks(reader, lambda _, flat=flat: flat, exchange)
        require_expected(model, flat)
        found[f"{saved}->{loaded}"] = (enough, reader.received_nbytes)
    return found


def unchecked(folder: Path, saved: str, loaded: str) -> int:
    """How many elements stay as the fresh process made them when the own shard is loaded without the check."""
    save(saved, folder)
    _, flat = target(loaded)
    with mock.patch.object(safe_load, "require_covered"):
        OwnShard(_path(folder, saved), Ballot(Exchange(alone=True), "own")).load(lambda _: flat)
    held = [each.to_local() if isinstance(each, DTensor) else each for each in flat.values()]
    return sum(int((each == -1).sum()) for each in held if isinstance(each, Tensor))


def errors(folder: Path, spoils: list[str]) -> dict[str, tuple[str, str, bool]]:
    """The error of a rank when rank 2's shard or state is spoilt, and whether it left its tensors as they were."""
    return {spoil: _error(folder / spoil, spoil) for spoil in spoils}


def _error(folder: Path, spoil: str) -> tuple[str, str, bool]:
    save("fsdp", folder)
    path, exchange = _path(folder, "fsdp"), Exchange(alone=False)
    _, flat = target("tp")
    if dist.get_rank() == 2:
        _spoil(spoil, path, flat)
    try:
        reader = RanksReader([path], exchange)
        load_from_ranks(reader, lambda _: flat, exchange)
    except Exception as error:
        held = (each.to_local() if isinstance(each, DTensor) else each for each in flat.values())
        same = all(bool((each == -1).all()) for each in held if isinstance(each, Tensor))
        return type(error).__name__, str(error), same
    return "", "", False


def _spoil(what: str, path: Path, flat: dict[str, Any]) -> None:
    data = bytearray(path.read_bytes())
    header = buffers.require_header(path)
    if what == "damaged":
        data[header.payload_offset + header.payload_nbytes // 2] ^= 1
        path.write_bytes(data)
    elif what == "another step":
        with mmap.mmap(os.open(path, os.O_RDWR), header.file_nbytes) as buf:
            buffers.commit(buf, header.model_copy(update={"step": 4}))
    elif what == "another key":
        flat["model.new"] = torch.full((3,), -1.0)
    elif what == "another size":
        flat["model.frozen"] = torch.full((6,), -1.0)


def one_without(folder: Path) -> int:
    """Three of four data-parallel ranks have a shard; the bytes that this rank received."""
    save("ddp", folder)
    rank, exchange = dist.get_rank(), Exchange(alone=False)
    reader = RanksReader([_path(folder, "ddp")] if rank else [], exchange)
    _, flat = target("ddp")
    own = f"own/{rank}"
    if rank == 0:
        del flat[own]  # which is nowhere else
    load_from_ranks(reader, lambda _: flat, exchange)
    for name, each in flat.items():
        if isinstance(each, Tensor):
            check(value_of(name), each)
    return reader.received_nbytes


def save_all(folder: Path, layouts: list[str]) -> None:
    """Save under each layout."""
    for layout in layouts:
        save(layout, folder)


def other_size(folder: Path, pairs: list[tuple[str, str]], saved_by: int) -> list[int]:
    """Load what another number of ranks saved, each of their files held by one of these ranks; bytes received."""
    rank, size, received = dist.get_rank(), dist.get_world_size(), []
    for saved, loaded in pairs:
        # From the last rank backwards, so that no rank has the file of its own number.
        held = [each for each in range(saved_by) if (saved_by - 1 - each) % size == rank]
        paths = [path for path, header in buffers.inventory(folder / saved) if header.rank in held]
        model, flat = target(loaded)
        if rank >= saved_by:
            del flat[f"own/{rank}"]
        reader = RanksReader(paths, Exchange(alone=False), round_nbytes=1)
        load_from_ranks(reader, lambda _, flat=flat: flat, Exchange(alone=False))
        if rank >= saved_by:
            flat[f"own/{rank}"] = f"position {7 * rank}"
        require_expected(model, flat)
        received.append(reader.received_nbytes)
    return received


def recovered(
    folder: Path, layout: str, store: dict[str, str], key: str, lost: list[int], *, extra: bool = False
) -> tuple[str, str, dict[str, Any]]:
    """Recover FSDP's step under a layout; ranks that lost their shard read S3 alone.

    ``extra``: the model has a parameter more. The error, or what it cost and whether the own shard gave all.
    """
    rank = dist.get_rank()
    model = Model()
    if extra:
        model.extra = nn.Parameter(torch.zeros(4))
    model = LAYOUTS[layout](model)  # type: ignore[assignment]
    path = None if rank in lost else _path(folder, "weights")

    def remote(alone: bool) -> RemoteReader:
        return RemoteReader(S3Store(**store), key, job="gpt", step=3, alone=alone)  # type: ignore[arg-type]

    try:
        found = recover({"model": model}, rank, path, remote=remote if key else None)
    except Exception as error:
        return type(error).__name__, str(error), {}
    for name, each in get_model_state_dict(model).items():
        check(value_of(f"model.{name}"), each)
    return "", "", found.cost | {"own": found.shard is not None}


def save_weights(folder: Path) -> None:
    """Make a shard file per rank of FSDP's weights, as a Session's state has them, and the checkpoint for S3."""
    rank = dist.get_rank()
    flat = {f"model.{name}": each for name, each in get_model_state_dict(fsdp(Model())).items()}
    for name, each in flat.items():
        fill(value_of(name), each)
    planned = make_plan(flat, folder / "weights", 1, 1)
    writer = ShardWriter(planned.layout, Owner("gpt", 1, rank, dist.get_world_size()), folder / "weights")
    contents = writer.collect(flat)
    assert contents is not None
    writer.save(contents, 3)
    dist.barrier()
    if rank == 0:
        publish(folder / "weights", 3, folder / "published")
