"""Ranks whose tensors are equal at first and drift apart: ``drifting.py STEPS OUT``; each rank writes its state there.

Batch norms see other data on each rank, as under DDP; a buffer and a large tensor of a loader differ from step 3 on.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

import holdfast
from holdfast.session.restore import restore_remote
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.remote.remote_reader import RemoteReader
from tests.session.kinds.compare import difference
from tests.session.kinds.tiers import Bucket
from tests.storage.checkpoints.upload import upload

LARGE = 40_000


class Drifting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.register_buffer("seen", torch.zeros(7))
        self.register_buffer("mask", torch.arange(9.0))


class Loader:
    """Reads the same file as the others until step 3."""

    def __init__(self) -> None:
        self.tokens = torch.arange(LARGE)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens = state["tokens"]


def made() -> dict[str, Any]:
    torch.manual_seed(1)
    model = Drifting()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loader": Loader()}


def advance(state: dict[str, Any], step: int, rank: int) -> None:
    apart = rank * (step > 2)
    state["model"].seen += step + apart
    state["loader"].tokens = state["loader"].tokens + 1 + apart
    generator = torch.Generator().manual_seed(10 * step + rank)
    state["optimizer"].zero_grad()
    state["model"].layers(torch.randn(8, 3, generator=generator)).square().mean().backward()
    for each in state["model"].parameters():
        dist.all_reduce(each.grad)
    state["optimizer"].step()


def main() -> None:
    dist.init_process_group("gloo")
    rank, state, session = dist.get_rank(), made(), holdfast.Session()
    for step in range(session.restore(state) + 1, int(sys.argv[1]) + 1):
        advance(state, step, rank)
        session.step(step)
        session.checkpoint(state)
        session.flush()
        torch.save(contents(state), Path(sys.argv[2], f"{rank}-{step}.pt"))
    dist.destroy_process_group()


def back(folder: Path, stored: Path, step: int, writers: int) -> str:
    """Restore this rank from a store; how that differs from what the rank had whose place it takes."""
    bucket: Any = Bucket()
    remote = upload(bucket, stored, step=step, world_size=writers)
    rank, state = dist.get_rank(), made()
    wanted = torch.load(folder / f"{rank % writers}-{step}.pt")
    if dist.get_world_size() != writers:
        state["loader"] = holdfast.Part(None)
    reader = RemoteReader(bucket, remote.key, job="gpt", step=step, alone=True)
    restore_remote(StateTree(state, rank, dist.get_world_size()), reader, rank)
    if dist.get_world_size() != writers:
        return difference(wanted["model"], dict(state["model"].state_dict()))
    return difference(wanted, contents(state))


def contents(state: dict[str, Any]) -> dict[str, Any]:
    """All tensors."""
    return {"model": dict(state["model"].state_dict()), "tokens": state["loader"].tokens}


if __name__ == "__main__":
    main()
