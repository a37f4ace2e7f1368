"""A loop in torchtitan's manner: a device mesh, tensor parallelism and FSDP2, containers of model parts and optimizers,
a stateful data loader, and a dictionary of states that a checkpointer loads and saves.

    torchrun --nproc-per-node 4 examples/train_titan.py --tp 2 --steps 20

What Holdfast adds is one line: ``HoldfastCheckpointer`` around the loop's own. Needs ``torchdata``.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.integrations.torchtitan import HoldfastCheckpointer

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(nn.functional.silu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def parallelize(model: Model, mesh: DeviceMesh) -> Model:
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


class Text(IterableDataset, Stateful):
    """An endless text of its own for every data-parallel rank."""

    def __init__(self, rank: int) -> None:
        self.rank, self.position = rank, 0

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            generator = torch.Generator().manual_seed(1000 * self.rank + self.position)
            self.position += 1
            yield torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.position = saved["position"]


class Loader(Stateful):
    """Its state is kept under the data-parallel rank's name: tensor-parallel ranks read the same."""

    def __init__(self, rank: int) -> None:
        self.name, self.inner = f"dp_rank_{rank}", StatefulDataLoader(Text(rank), batch_size=4)

    def state_dict(self) -> dict[str, Any]:
        return {self.name: self.inner.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.inner.load_state_dict(saved[self.name])


class ModelWrapper(Stateful):
    def __init__(self, parts: list[nn.Module]) -> None:
        self.model = parts

    def state_dict(self) -> dict[str, Any]:
        return {name: each for part in self.model for name, each in get_model_state_dict(part).items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        for part in self.model:
            set_model_state_dict(part, saved)


class OptimizersContainer(Optimizer):
    """An optimizer for each part of the model; steps them all."""

    def __init__(self, parts: list[nn.Module], **options: Any) -> None:
        self.optimizers = [AdamW(part.parameters(), **options) for part in parts]
        super().__init__([each for part in parts for each in part.parameters()], options)

    def step(self, *_: Any) -> None:
        for each in self.optimizers:
            each.step()

    def zero_grad(self, *_: Any, **__: Any) -> None:
        for each in self.optimizers:
            each.zero_grad()


class CheckpointManager:
    """Stands for the loop's own checkpointer: here it keeps nothing."""

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def load(self, step: int = -1) -> bool:
        return False

    def save(self, curr_step: int, last_step: bool = False) -> None:
        pass


class Trainer(Stateful):
    def __init__(self, tp: int) -> None:
        self.mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
        dp_rank = self.mesh["dp"].get_local_rank()
        torch.manual_seed(3)
        self.model_parts: list[nn.Module] = [parallelize(Model(), self.mesh)]
        torch.manual_seed(dp_rank)
        self.optimizers = OptimizersContainer(self.model_parts, lr=3e-3)
        self.scheduler = LambdaLR(self.optimizers.optimizers[0], lambda step: 0.98**step)
        self.loader = Loader(dp_rank)
        self.step = self.tokens_seen = 0
        states = {
            "model": ModelWrapper(self.model_parts),
            "optimizer": self.optimizers,
            "lr_scheduler": self.scheduler,
            "dataloader": self.loader,
            "train_state": self,
        }
        self.checkpointer = HoldfastCheckpointer(CheckpointManager(states))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "tokens_seen": self.tokens_seen}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.step, self.tokens_seen = saved["step"], saved["tokens_seen"]

    def train_step(self, tokens: Tensor) -> None:
        self.optimizers.zero_grad()
        (model,) = self.model_parts
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms = [torch.nn.utils.get_total_norm([each.grad]) for each in model.parameters()]
        norm = torch.stack([each.full_tensor() for each in norms]).norm()  # type: ignore[attr-defined]
        self.optimizers.step()
        self.scheduler.step()
        self.tokens_seen += tokens.numel() * self.mesh["dp"].size()
        self.checkpointer.report(loss=loss.item(), grad_norm=norm.item())

    def train(self, steps: int) -> None:
        self.checkpointer.load(step=-1)
        batches = iter(self.loader.inner)
        while self.step < steps:
            self.step += 1
            self.train_step(next(batches))
            self.checkpointer.save(self.step, last_step=self.step == steps)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", help="folder for each rank's final weights")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(options.tp)
    trainer.train(options.steps)
    if options.out:
        weights = {
            name: each.to_local()  # type: ignore[operator]
            for part in trainer.model_parts
            for name, each in part.named_parameters()
        }
        end = {"weights": weights, "tokens_seen": trainer.tokens_seen}
        torch.save(end, f"{options.out}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
