"""FSDP1 on two or more ranks: ``fsdp1.py orig|flat OUT [STEP TO DIE IN]``, after ``use_orig_params``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.integrations.scripts.frameworks import life


class Counted(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


dist.init_process_group("gloo")
torch.manual_seed(7)
layers = [
    nn.Linear(13, 33),
    nn.Tanh(),
    nn.LayerNorm(33),
    Counted(),
    nn.Dropout(0.2),
    nn.Linear(33, 7),
    nn.Linear(7, 3),
]
model = FullyShardedDataParallel(
    nn.Sequential(*layers),
    device_id=torch.device("cpu"),
    use_orig_params=life.KIND == "orig",
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP
    if life.KIND == "grad-op"
    else ShardingStrategy.FULL_SHARD,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
torch.manual_seed(life.RANK)


def step() -> Tensor:
    x = torch.randn(8, 13)
    model(x).square().mean().backward()
    model.clip_grad_norm_(0.5)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    return x


life.train({"model": model, "optimizer": optimizer, "scheduler": scheduler}, step)
life.finish(
    weights=[each.detach() for each in model.parameters()],
    buffers=dict(model.named_buffers()),
    optimizer=life.optimizer_state(model, optimizer),
)
dist.destroy_process_group()
