"""Schedulers of the learning rate, and the scaler of gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR

from tests.session.kinds.training import P, State, Training, loss_of, net, optimized, train


class Warm:
    """A callable object with a state, as LambdaLR keeps it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 1 / (epoch + self.calls)


SCHEDULERS: dict[str, P] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda step: 0.9**step),
    "LambdaLR, callable object": lambda o: lrs.LambdaLR(o, Warm()),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lrs.StepLR(o, 2),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [2, 4, 4, 6]),
    "ConstantLR": lambda o: lrs.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: lrs.LinearLR(o, total_iters=5),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 6),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "CyclicLR, exp_range": lambda o: lrs.CyclicLR(o, 0.01, 0.1, mode="exp_range", gamma=0.9),
    "CyclicLR, own scale": lambda o: lrs.CyclicLR(o, 0.01, 0.1, scale_fn=Warm()),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.1, total_steps=30),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, total_iters=2), lrs.MultiStepLR(o, [2, 4])], [3]
    ),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ExponentialLR(o, 0.9), lrs.MultiStepLR(o, [2])]),
    "SWALR": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


def _scheduled(make: P) -> Callable[[], State]:
    def made() -> State:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}

    return made


def _scaled_step(state: State, step: int) -> float:
    state["optimizer"].zero_grad()
    loss = loss_of(state["model"])
    state["scaler"].scale(loss).backward()
    state["scaler"].step(state["optimizer"])
    state["scaler"].update()
    return loss.item()


def _scaler() -> State:
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    return optimized(torch.optim.AdamW)() | {"scaler": scaler}


TRAININGS = [
    *(
        Training(f"scheduler: {name}", _scheduled(make), train, "schedulers")
        for name, make in SCHEDULERS.items()
    ),
    Training("gradient scaler", _scaler, _scaled_step, "schedulers"),
]
