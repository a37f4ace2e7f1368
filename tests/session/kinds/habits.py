"""Further habits of training scripts: adapters, averages of their own, master weights, tensors that are replaced."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs

from tests.session.kinds.training import Part, State, Training, loss_of, net, optimized, train


class Adapted(nn.Module):
    """A frozen layer with adapters by name, as peft has them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 6).requires_grad_(False)
        self.lora_a = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_b = nn.ModuleDict({"default": nn.Linear(2, 6, bias=False)})
        self.magnitude = nn.ParameterDict({"default": torch.ones(6), "a-b": torch.ones(())})
        self.scales = nn.ParameterList([torch.ones(6), torch.zeros(0)])
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        adapted = self.base(x) + self.lora_b["default"](self.lora_a["default"](x))
        scale = self.magnitude["default"] * self.magnitude["a-b"] * self.scales[0]
        out: Tensor = self.head(adapted * scale)
        return out


class Shadow:
    """An average of weights as a list, which warms up."""

    def __init__(self, model: nn.Module) -> None:
        self.params, self.step = [each.detach().clone() for each in model.parameters()], 0

    def update(self, model: nn.Module) -> None:
        self.step += 1
        decay = min(0.9, (1 + self.step) / (10 + self.step))
        for mine, param in zip(self.params, model.parameters(), strict=True):
            mine.sub_((1 - decay) * (mine - param.detach()))

    def state_dict(self) -> dict[str, Any]:
        return {"decay": 0.9, "optimization_step": self.step, "shadow_params": self.params, "collected": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["optimization_step"]
        self.params = [each.clone() for each in state["shadow_params"]]


def _adapted() -> State:
    model = Adapted()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    return {"model": model, "optimizer": optimizer, "shadow": Shadow(model)}


def _adapt(state: State, step: int) -> float:
    loss = train(state, step)
    state["shadow"].update(state["model"])
    if step == 4:
        params = list(state["model"].base.requires_grad_(True).parameters())
        state["optimizer"].add_param_group({"params": params, "lr": 0.001})
    return loss


class Odd(nn.Module):
    """A transposed, a tied, an empty parameter and one without a dimension; buffers of odd types and odd numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4).t())
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.empty(0, 3))
        self.out = nn.Linear(6, 1)
        self.tied = self.out.weight
        self.register_buffer("mask", torch.zeros(4, dtype=torch.bool))
        self.register_buffer("codes", torch.zeros(4, dtype=torch.int8))
        self.register_buffer("wave", torch.zeros(3, dtype=torch.complex32))
        self.register_buffer("wide", torch.ones(1).expand(4, 5))
        self.register_buffer("numbers", torch.tensor([math.nan, -0.0, math.inf]))

    def forward(self, x: Tensor) -> Tensor:
        self.mask ^= True
        self.codes += 1
        self.wave = (self.wave.to(torch.complex64) + 1j).to(torch.complex32)
        self.numbers = self.numbers * -1
        out: Tensor = self.out(x @ self.weight * self.scale)
        return out


def _move(state: State, step: int) -> float:
    """Weights and optimizer state lie elsewhere after each step, as after an offload."""
    loss = train(state, step)
    for each in state["model"].parameters():
        each.data = each.data.clone()
    for values in state["optimizer"].state.values():
        values.update({name: each.clone() for name, each in values.items()})
    return loss


def _scaled() -> State:
    state = optimized(torch.optim.AdamW)()
    scheduler = lrs.OneCycleLR(state["optimizer"], 0.1, total_steps=30)
    return state | {"scaler": torch.amp.GradScaler("cpu", growth_interval=2), "schedule": scheduler}


def _overflow(state: State, step: int) -> float:
    """Gradients are unscaled and clipped; at step 3 they are not finite."""
    optimizer, scaler = state["optimizer"], state["scaler"]
    optimizer.zero_grad()
    loss = loss_of(state["model"])
    scaler.scale(loss * math.inf if step == 3 else loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    state["schedule"].step()
    return loss.item()


def _two_nets() -> State:
    model = nn.ModuleDict({"g": net(), "d": net()})
    return {
        "model": model,
        "optimizer_g": torch.optim.Adam(model["g"].parameters()),
        "optimizer_d": torch.optim.RMSprop(model["d"].parameters(), centered=True, momentum=0.9),
    }


def _in_turn(state: State, step: int) -> float:
    """The second of two networks is trained at every second step."""
    loss = 0.0
    for name in "g" if step % 2 else "gd":
        state[f"optimizer_{name}"].zero_grad()
        found = loss_of(state["model"][name])
        found.backward()  # type: ignore[no-untyped-call]
        state[f"optimizer_{name}"].step()
        loss += found.item()
    return loss


def _masters() -> State:
    model = net().bfloat16()
    masters = [each.detach().float().clone() for each in model.parameters()]
    return {"model": model, "masters": Part(weights=masters)}


def _by_masters(state: State, _: int) -> float:
    model = state["model"]
    model.zero_grad()
    loss = model(torch.randn(5, 4).bfloat16()).square().mean()
    loss.backward()
    for master, each in zip(state["masters"].values["weights"], model.parameters(), strict=True):
        master.sub_(0.1 * each.grad.float())
        each.data.copy_(master)
    return float(loss.item())


TRAININGS = [
    Training("adapters and an average of their own", _adapted, _adapt, "modules"),
    Training("odd parameters and buffers", optimized(torch.optim.Adam, Odd), train, "modules"),
    Training("tensors that are moved", optimized(torch.optim.AdamW), _move, "optimizers"),
    Training("gradient scaler, an overflow", _scaled, _overflow, "schedulers"),
    Training("two networks in turn", _two_nets, _in_turn, "optimizers"),
    Training("master weights by hand", _masters, _by_masters, "modules"),
]
