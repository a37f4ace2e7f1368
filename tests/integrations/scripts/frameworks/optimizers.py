"""Small models, each trained by an optimizer of its own, in one job: ``optimizers.py KIND[,KIND] OUT [DIE]``.

As a user of each library writes it: nothing but the state dictionary and the calls to the Session is Holdfast's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.integrations.scripts.frameworks import life

WIDTH = 128
"""8-bit optimizers keep the state of smaller tensors as it is."""
Made = tuple[nn.Module, Optimizer]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4), nn.Linear(4, 4))


def torchao(name: str, **options: Any) -> Made:
    from torchao import optim  # noqa: PLC0415  (seconds to import)

    model = net()
    return model, getattr(optim, name)(model.parameters(), lr=1e-3, **options)


def float8(*, all_gather: bool) -> Made:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 16))
    config = Float8LinearConfig(emulate=True, enable_fsdp_float8_all_gather=all_gather)
    convert_to_float8_training(model, config=config)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def bitsandbytes(name: str) -> Made:
    from bitsandbytes import optim  # noqa: PLC0415

    model = net()
    return model, getattr(optim, name)(model.parameters(), lr=1e-3)


def galore() -> Made:
    from galore_torch import GaLoreAdamW  # noqa: PLC0415

    model = net()
    large = [each for each in model.parameters() if each.numel() > WIDTH * WIDTH // 2]
    small = [each for each in model.parameters() if each.numel() <= WIDTH * WIDTH // 2]
    low_rank = {"params": large, "rank": 8, "update_proj_gap": 4, "scale": 0.25, "proj_type": "std"}
    return model, GaLoreAdamW([{"params": small}, low_rank], lr=1e-3)


def lbfgs() -> Made:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    return model, torch.optim.LBFGS(model.parameters(), lr=0.1, history_size=4, max_iter=3)


def sparse_adam() -> Made:
    model = nn.Embedding(50, 8, sparse=True)
    return model, torch.optim.SparseAdam(model.parameters())


KINDS: dict[str, Callable[[], Made]] = {
    "torchao-8bit": lambda: torchao("AdamW8bit"),
    "torchao-4bit": lambda: torchao("AdamW4bit"),
    "torchao-fp8": lambda: torchao("AdamWFp8"),
    "torchao-bf16": lambda: torchao("_AdamW"),
    "float8": lambda: float8(all_gather=False),
    "float8-all-gather": lambda: float8(all_gather=True),
    "bitsandbytes-adamw": lambda: bitsandbytes("AdamW8bit"),
    "bitsandbytes-lion": lambda: bitsandbytes("Lion8bit"),
    "galore": galore,
    "lbfgs": lbfgs,
    "sparse-adam": sparse_adam,
}


def step(model: nn.Module, optimizer: Optimizer) -> Tensor:
    first = next(model.parameters())
    if isinstance(model, nn.Embedding):
        x = torch.randint(50, (5,))
    else:
        x = torch.randn(8, first.shape[1], dtype=first.dtype)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.item()

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
    return x


# torchao compiles each step, for the speed of a GPU: minutes of a compiler here.
torch.compiler.set_stance("force_eager")
torch.manual_seed(7)
made = {kind: KINDS[kind]() for kind in life.KIND.split(",")}
state: dict[str, Any] = {f"model-{kind}": model for kind, (model, _) in made.items()}
state |= {f"optimizer-{kind}": optimizer for kind, (_, optimizer) in made.items()}
life.train(state, lambda: {kind: step(*each) for kind, each in made.items()})
life.finish(
    weights={kind: dict(model.state_dict()) for kind, (model, _) in made.items()},
    optimizers={kind: life.optimizer_state(*each) for kind, each in made.items()},
)
