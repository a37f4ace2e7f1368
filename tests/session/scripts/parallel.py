"""Trains under one kind of parallelism: ``parallel.py KIND STEPS OUT``. Writes the whole state, as each rank has it."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import holdfast
from holdfast.session.state import StateTree

KIND, STEPS, OUT = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
LAYERS = {
    "first": nn.Linear(9, 33),
    "norm": nn.BatchNorm1d(33),
    "second": nn.Linear(33, 18),
    "last": nn.Linear(18, 7),
}


class Net(nn.Module):
    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x).relu()
        return x


class FlatAdam:
    """ZeRO, first stage: the state of one flat buffer of all parameters, cut evenly among ranks."""

    def __init__(self, model: nn.Module) -> None:
        self.named = dict(model.named_parameters())
        size = sum(each.numel() for each in self.named.values())
        self.each = -(-size // SIZE)
        self.state = {name: torch.zeros(self.each) for name in ("exp_avg", "exp_avg_sq")}

    def step(self) -> None:
        flat = torch.cat([each.grad.flatten() for each in self.named.values()])
        flat = nn.functional.pad(flat, (0, self.each * SIZE - len(flat)))
        dist.all_reduce(flat)
        mine = flat[RANK * self.each :][: self.each]
        self.state["exp_avg"].lerp_(mine, 0.1)
        self.state["exp_avg_sq"].lerp_(mine.square(), 0.01)

    def state_dict(self) -> dict[str, object]:
        shapes = {name: each.shape for name, each in self.named.items()}
        return {
            kind: holdfast.flat_shards(shapes, local, RANK * self.each) for kind, local in self.state.items()
        }

    def load_state_dict(self, _: dict[str, object]) -> None:
        """Loaded in place."""

    def whole(self) -> dict[str, torch.Tensor]:
        found = {}
        for kind, local in self.state.items():
            parts = [torch.empty_like(local) for _ in range(SIZE)]
            dist.all_gather(parts, local)
            flat = torch.cat(parts)
            for name, each in self.named.items():
                found[f"optimizer.{kind}.{name}"] = flat[: each.numel()].view(each.shape)
                flat = flat[each.numel() :]
        return found


def build() -> nn.Module:
    if KIND in ("fsdp", "hsdp"):
        shape = (SIZE,) if KIND == "fsdp" else (2, SIZE // 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        model = Net(LAYERS)
        for layer in ("first", "second", "last"):
            fully_shard(model.layers[layer], mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if KIND in ("tp", "fsdp-tp"):
        mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
        model = Net(LAYERS)
        plan = {"layers.second": ColwiseParallel(), "layers.last": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        return model if KIND == "tp" else fully_shard(model, mesh=mesh["dp"])
    if KIND == "pp":
        stages = (("first", "norm"), ("second", "last"))
        return Net({name: LAYERS[name] for name in stages[RANK]})
    return Net(LAYERS) if KIND == "zero" else DistributedDataParallel(Net(LAYERS))


model = build()
optimizer = FlatAdam(model) if KIND == "zero" else AdamW(model.parameters(), lr=1e-2)
schedule = None
if KIND == "pp":
    stage = PipelineStage(model, RANK, SIZE, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, _: out.square().mean())


def step() -> None:
    x = torch.randn(16, 9)
    if schedule is not None:
        schedule.step(x) if RANK == 0 else schedule.step(target=torch.zeros(16, 7))
    else:
        model(x).square().mean().backward()
    optimizer.step()
    model.zero_grad()


def write_whole(when: str) -> None:
    whole = {}
    if KIND == "zero":
        whole |= optimizer.whole()
    for name, each in flatten_state_dict(StateTree(state).nested())[0].items():
        if isinstance(each, DTensor):
            whole[name] = each.full_tensor()
        elif name not in whole and isinstance(each, torch.Tensor) and not hasattr(each, "boxes"):
            whole[name] = each.clone()
    torch.save(whole, OUT / f"{when}-{RANK}.pt")


session = holdfast.Session()
state = {"model": model, "optimizer": optimizer}
torch.manual_seed(RANK // 2 if "tp" in KIND else RANK)  # tensor-parallel ranks see the same batch
start = session.restore(state)
if start:
    write_whole("restored")
for number in range(start + 1, STEPS + 1):
    session.wait()
    step()
    session.step(number)
    session.checkpoint(state)
session.flush()
write_whole("whole")
dist.destroy_process_group()
