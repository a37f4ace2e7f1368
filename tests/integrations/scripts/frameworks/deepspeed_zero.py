"""DeepSpeed's ZeRO on any number of ranks: ``deepspeed_zero.py 1-fp32|1-bf16|2-fp32|2-bf16 OUT [STEP TO DIE IN]``."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.integrations.deepspeed import training_state
from tests.integrations.scripts.frameworks import life

STAGE, PRECISION = life.KIND.split("-")
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": int(STAGE)},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 6}},
}
if PRECISION != "fp32":
    CONFIG[PRECISION] = {"enabled": True}
# All-reduce in shared memory, compiled when first used: a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

dist.init_process_group("gloo")
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(13, 33), nn.Tanh(), nn.Dropout(0.2), nn.Linear(33, 7))
decayed = {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": 0.1}
others = {"params": [each for each in model.parameters() if each.dim() == 1], "weight_decay": 0.0}
engine, *_ = deepspeed.initialize(model=model, model_parameters=[decayed, others], config=CONFIG)
torch.manual_seed(life.RANK)


def step() -> list[Tensor]:
    read = [torch.randn(4, 13) for _ in range(2)]
    for x in read:
        loss = engine(x.to(next(model.parameters()).dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
    return read


life.train(training_state(engine), step)
zero = engine.optimizer
life.finish(
    weights=dict(model.state_dict()),
    masters=[each.detach() for each in zero.single_partition_of_fp32_groups],
    optimizer=[dict(each) for each in zero.optimizer.state.values()],
    groups=[
        {key: each for key, each in group.items() if key != "params"} for group in zero.optimizer.param_groups
    ],
    schedule=engine.lr_scheduler.state_dict(),
    counts=[engine.global_steps, engine.global_samples, engine.micro_steps, engine.skipped_steps],
)
dist.destroy_process_group()
