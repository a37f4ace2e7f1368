"""Base of a kind of training, and the usual step of one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs

P = Callable[[Any], Any]
State = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Training:
    """One kind."""

    name: str
    make: Callable[[], State]
    step: Callable[[State, int], float]
    group: str
    refused: str = ""
    """Text in the error at the first save; empty: it comes back exactly."""


class Part:
    """Something with a state of its own."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def net(width: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def loss_of(model: nn.Module, width: int = 4) -> Tensor:
    loss: Tensor = model(torch.randn(5, width)).square().mean()
    return loss


def train(state: State, step: int, *, width: int = 4) -> float:
    """The usual step of everything in ``state``."""
    optimizers = [each for name, each in state.items() if name.startswith("optimizer")]

    def closure() -> Tensor:
        for each in optimizers:
            each.zero_grad()
        loss = loss_of(state["model"], width)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    loss = closure()
    for each in optimizers:
        each.step(closure) if isinstance(each, torch.optim.LBFGS) else each.step()
    if "scheduler" in state:
        given = (loss.detach(),) if isinstance(state["scheduler"], lrs.ReduceLROnPlateau) else ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state["scheduler"].step(*given)
    if "average" in state:
        state["average"].update_parameters(state["model"])
    return loss.item()


def optimized(make: Callable[[Any], Any], net: Callable[[], nn.Module] = net) -> Callable[[], State]:
    def made() -> State:
        model = net()
        return {"model": model, "optimizer": make(model.parameters())}

    return made
