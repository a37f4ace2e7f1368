"""A job under one of several parallel layouts, which notes its whole weights after every restore and at the end."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import holdfast

WIDTH, HIDDEN = 8, 12  # torch wants tensor-parallel sizes even; three FSDP ranks do not divide 8


def network(kind: str) -> nn.Module:
    """The model with weights of its own, as this layout has it."""
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "fsdp":
        fully_shard(model, mesh=mesh)
        return model
    if kind == "tp":
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return DistributedDataParallel(model)


def note(model: nn.Module, file: Path) -> None:
    """Write the whole weights; all ranks take part. The file is whole as soon as it is there."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    if dist.get_rank() == 0:
        unfinished = file.with_suffix(".new")
        torch.save(whole, unfinished)
        unfinished.rename(file)


def main(kind: str, steps: int, notes: Path, dies_in: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    epoch = int(os.environ["HOLDFAST_EPOCH"])
    torch.manual_seed(len(kind) + epoch)
    session = holdfast.Session()
    model = network(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    start = session.restore(state)
    note(model, notes / f"e{epoch}-step{start}-{'warm' if optimizer.state else 'cold'}.pt")
    for step in range(start + 1, steps + 1):
        time.sleep(0.05)
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        if epoch == dies_in:
            dist.barrier()
            os._exit(7)  # before anything is saved
        session.step(step, loss=0.0)
        session.checkpoint(state, last=step == steps)
    note(model, notes / "end.pt")
    dist.barrier()


if __name__ == "__main__":
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    main(given["--kind"], int(given["--steps"]), Path(given["--notes"]), int(given.get("--dies-in", "0")))
