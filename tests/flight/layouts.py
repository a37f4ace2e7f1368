"""Training loops of PyTorch's own libraries, and of a script's own groups, in which ranks fail at named places."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from holdfast.agent.ranks.flight_thread import ENV_FOLDER

WIDTH = 8
At = Callable[[str], bool]
"""A place in the loop, where a rank may fail; True: leave out what comes next, or do it in another way."""


class Block(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any) -> Any:
        """Both, one after the other."""
        return self.down(torch.relu(self.up(given)))


def _model(layers: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(layers)))


def _train(model: nn.Module, at: At) -> None:
    at("loader")
    given = torch.ones(4, WIDTH)
    at("forward")
    loss = model(given).sum()
    at("backward")
    loss.backward()
    at("optimizer")


def _mesh(sizes: dict[str, int]) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def ddp(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """DDP; the loss is averaged, rank 0 writes a checkpoint while the others wait, and every rank evaluates."""
    model = DistributedDataParallel(_model())
    rank = dist.get_rank()

    def step() -> None:
        if not at("step"):
            _train(model, at)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        at("logging")
        work.wait()
        if rank == 0:
            at("checkpoint")
        if not at("barrier"):
            dist.barrier()
        at("eval")
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, {"rank": rank})

    return step


def fsdp(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """FSDP2, with one dimension or two (HSDP); saved by torch.distributed.checkpoint."""
    mesh = _mesh(sizes)
    model = _model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def step() -> None:
        _train(model, at)
        norm = torch.ones(1)
        dist.all_reduce(norm)

    return step


def saved(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """FSDP2, and every step a save of torch.distributed.checkpoint, in a group of its own."""
    train = fsdp(sizes, at)
    group = dist.new_group(backend="gloo")
    target = Path(os.environ[ENV_FOLDER]) / "checkpoint"

    def step() -> None:
        train()
        at("save")
        save({"weights": torch.ones(4)}, checkpoint_id=target, process_group=group)
        at("saved")

    return step


def tensor(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """Tensor parallel layers of DTensor, in data-parallel replicas whose gradients are reduced by hand."""
    mesh = _mesh(sizes)
    model = _model()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model:
        parallelize_module(layer, mesh["tp"], plan)
    replicas = mesh.get_group("dp")

    def step() -> None:
        _train(model, at)
        works = []
        for weight in model.parameters():
            grad: Any = weight.grad
            if not at("bucket"):
                works.append(dist.all_reduce(grad.to_local(), group=replicas, async_op=True))
        for work in works:
            work.wait()
        at("updated")
        dist.all_reduce(torch.ones(1))

    return step


def _pipelined(sizes: dict[str, int], at: At, chunks: int) -> Callable[[], None]:
    mesh = _mesh(sizes)
    group, stages = mesh.get_group("pp"), sizes["pp"]
    mine, device = mesh.get_local_rank("pp"), torch.device("cpu")
    made: list[Any] = [
        PipelineStage(_Failing(at), mine + stages * chunk, stages * chunks, device, group=group)
        for chunk in range(chunks)
    ]

    def loss(out: Any, target: Any) -> Any:
        return (out - target).sum()

    schedule: Any = (
        ScheduleInterleaved1F1B(made, 4, loss_fn=loss)
        if chunks > 1
        else Schedule1F1B(made[0], 4, loss_fn=loss)
    )
    replicas = mesh.get_group("dp") if "dp" in sizes else None

    def step() -> None:
        at("loader")
        given = (torch.ones(4, WIDTH),) if mine == 0 else ()
        target = torch.ones(4, WIDTH) if mine == stages - 1 else None
        schedule.step(*given, target=target)
        at("optimizer")
        if replicas is not None:
            dist.all_reduce(torch.ones(4), group=replicas)
        at("updated")
        if not at("norm"):
            dist.all_reduce(torch.ones(1))

    return step


class _Failing(Block):
    """A stage in whose forward pass a rank may fail."""

    def __init__(self, at: At) -> None:
        super().__init__()
        self.at = at

    def forward(self, given: Any) -> Any:
        """As that of a block."""
        self.at("forward")
        return super().forward(given)


def pipe(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """1F1B of torch.distributed.pipelining."""
    return _pipelined(sizes, at, 1)


def interleaved(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """Interleaved 1F1B, two stages on each rank."""
    return _pipelined(sizes, at, 2)


def ring(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """Context parallel: keys go around a ring, sends and receives are launched together."""
    mesh = _mesh(sizes)
    group = mesh.get_group("cp")
    around = dist.get_process_group_ranks(group)
    mine = around.index(dist.get_rank())
    after, before = around[(mine + 1) % len(around)], around[mine - 1]

    def step() -> None:
        at("loader")
        for _ in range(len(around) - 1):
            at("forward")
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, torch.ones(4), after, group),
                    dist.P2POp(dist.irecv, torch.ones(4), before, group),
                ]
            )
            for work in works:
                work.wait()
        at("optimizer")
        if "dp" in sizes:
            dist.all_reduce(torch.ones(4), group=mesh.get_group("dp"))
        dist.all_reduce(torch.ones(1))

    return step


def experts(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """Tokens go to experts in uneven parts, and come back."""
    mesh = _mesh(sizes)
    group, number = mesh.get_group("ep"), sizes["ep"]
    parts = [index + 1 for index in range(number)]

    def step() -> None:
        at("loader")
        mine = mesh.get_local_rank("ep")
        tokens, came = torch.ones(sum(parts)), torch.empty(number * parts[mine])
        for place in ("dispatch", "combine"):
            at(place)
            there, back = (parts, [parts[mine]] * number)
            if place == "dispatch":
                dist.all_to_all_single(came, tokens, back, there, group=group)
            else:
                dist.all_to_all_single(tokens, came, there, back, group=group)
        at("optimizer")
        if "dp" in sizes:
            dist.all_reduce(torch.ones(4), group=mesh.get_group("dp"))
        dist.all_reduce(torch.ones(1))

    return step


def late(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """A group of the odd ranks, in an order of its own, that is made in the second step and used by its members."""
    world, rank = dist.get_world_size(), dist.get_rank()
    order = [each for each in (5, 3, 7, 1) if each < world]
    made: list[Any] = []
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        at("loader")
        dist.all_reduce(torch.ones(4))
        if count == 2 and not at("group"):
            made.append(dist.new_group(order, sort_ranks=False))
        if made and rank in order:
            at("odd")
            dist.all_reduce(torch.ones(2), group=made[0])
            dist.broadcast(torch.ones(3), src=order[0], group=made[0])
        at("optimizer")
        dist.all_reduce(torch.ones(1))

    return step


def leader(sizes: dict[str, int], at: At) -> Callable[[], None]:
    """Rank 0 collects what all others measured, and broadcasts the next plan."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def step() -> None:
        at("loader")
        losses: list[Any] | None = [None] * world if rank == 0 else None
        dist.gather_object({"loss": 1.0}, losses, dst=0)
        if rank == 0:
            at("decide")
        plan: list[Any] = [{"go": True}]
        if not at("told"):
            dist.broadcast_object_list(plan, src=0)
        at("optimizer")
        dist.reduce(torch.ones(4), dst=0)
        dist.all_reduce(torch.ones(1))

    return step


LAYOUTS: dict[str, Callable[[dict[str, int], At], Callable[[], None]]] = {
    made.__name__: made for made in (ddp, fsdp, saved, tensor, pipe, interleaved, ring, experts, late, leader)
}
