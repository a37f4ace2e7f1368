"""Kinds of trainings: modules, optimizers, schedulers and what else has a state, and a step of each.

Each entry makes the fresh objects, as a script does that starts again, and a step that may change more than numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler as lrs
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

State = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Training:
    """One kind."""

    name: str
    make: Callable[[], State]
    step: Callable[[State, int], float]
    group: str
    refused: str = ""
    """What the error at the first save must hold; empty: it comes back exactly."""


class Part:
    """Something with a state of its own."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def _net(width: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def _loss(model: nn.Module, width: int = 4) -> Tensor:
    loss: Tensor = model(torch.randn(5, width)).square().mean()
    return loss


def train(state: State, step: int, *, width: int = 4) -> float:
    """The usual step of everything in ``state``."""
    optimizers = [each for name, each in state.items() if name.startswith("optimizer")]

    def closure() -> Tensor:
        for each in optimizers:
            each.zero_grad()
        loss = _loss(state["model"], width)
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


# Optimizers -----------------------------------------------------------------------------------------------------


def _with(make: Callable[[Any], Any], net: Callable[[], nn.Module] = _net) -> Callable[[], State]:
    def made() -> State:
        model = net()
        return {"model": model, "optimizer": make(model.parameters())}

    return made


def _matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 1, bias=False))


class ProjectionState:
    """A plain object in an optimizer's state, as GaLore has."""

    def __init__(self, rank: int) -> None:
        self.rank, self.matrix, self.seen = rank, None, 0

    def project(self, gradient: Tensor, step: int) -> Tensor:
        if self.matrix is None or step % 2 == 0:
            self.matrix = torch.linalg.qr(gradient + torch.randn_like(gradient))[0][:, : self.rank]
        self.seen += 1
        return self.matrix.t() @ gradient


class Odd(torch.optim.Optimizer):
    """Optimizers have in common what this one has in its state: objects, bytes, lists, late keys, histories."""

    def __init__(self, params: Any, kind: str) -> None:
        super().__init__(params, {"lr": 0.1, "kind": kind, "none": None, "betas": (0.9, 0.95)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.add_(getattr(self, group["kind"])(param, self.state[param]), alpha=-group["lr"])

    def galore(self, param: Tensor, state: Any) -> Tensor:
        if param.ndim < 2:
            return param.grad
        if not state:
            state.update(step=0, projector=ProjectionState(2), low=torch.zeros(1))
        state["step"] += 1
        state["low"] = 0.9 * state["low"] + state["projector"].project(param.grad, state["step"])
        return state["projector"].matrix @ state["low"]

    def eight_bit(self, param: Tensor, state: Any) -> Tensor:
        if not state:
            state.update(step=0, codes=torch.zeros_like(param, dtype=torch.uint8), scale=torch.ones(1))
        state["step"] += 1
        value = (state["codes"].float() - 128) * state["scale"] * 0.9 + param.grad
        state["scale"] = value.abs().max().reshape(1) / 127 + 1e-12
        state["codes"].copy_((value / state["scale"]).round() + 128)
        return value

    def late(self, param: Tensor, state: Any) -> Tensor:
        state["step"] = state.get("step", 0) + 1
        if state["step"] > 2:
            state["slow"] = state.get("slow", torch.zeros_like(param)) * 0.9 + param.grad
        return param.grad + state.get("slow", 0)

    def history(self, param: Tensor, state: Any) -> Tensor:
        state.setdefault("gradients", []).append(param.grad.clone())
        state["norms"] = {len(state["gradients"]): param.grad.norm()}
        del state["gradients"][:-3]
        return torch.stack(state["gradients"]).mean(0)

    def wrapped(self, param: Tensor, state: Any) -> Tensor:
        from tests.session.kinds.values import Scaled  # noqa: PLC0415

        before = state["m"].codes.float() * state["m"].scale if state else 0
        value = before * 0.5 + param.grad.abs()
        scale = value.max().reshape(1) / 255 + 1e-12
        state["m"] = Scaled((value / scale).to(torch.uint8), scale)
        return param.grad

    def halved(self, param: Tensor, state: Any) -> Tensor:
        state["m"] = (state.get("m", torch.zeros_like(param)).float() * 0.9 + param.grad).to(torch.bfloat16)
        return state["m"].float()

    def scalar(self, param: Tensor, state: Any) -> Tensor:
        state["best"] = min(state.get("best", float("inf")), float(param.grad.norm()))
        state["where"] = (state["best"], "norm", None)
        return param.grad * state["best"]


P = Callable[[Any], Any]
OPTIMIZERS: dict[str, P] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "SGD with nesterov, maximize": lambda p: torch.optim.SGD(
        p, 0.01, momentum=0.9, nesterov=True, maximize=True
    ),
    "Adam": torch.optim.Adam,
    "Adam, amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "Adam, lr a tensor": lambda p: torch.optim.Adam(p, torch.tensor(0.01), foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW, not foreach": lambda p: torch.optim.AdamW(p, foreach=False),
    "Adafactor": torch.optim.Adafactor,
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "LBFGS": lambda p: torch.optim.LBFGS(p, history_size=3, max_iter=2),
    "LBFGS, line search": lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": torch.optim.RMSprop,
    "RMSprop, centered": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Rprop": torch.optim.Rprop,
}
ODD = ("galore", "eight_bit", "late", "history", "wrapped", "halved", "scalar")


def _sparse() -> State:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.LazyLinear(1))
    model(torch.zeros(1, 3, dtype=torch.long))
    return {
        "model": model,
        "optimizer0": torch.optim.SparseAdam(model[0].parameters()),
        "optimizer1": torch.optim.AdamW(model[2].parameters()),
    }


def _sparse_step(state: State, step: int) -> float:
    loss = state["model"](torch.randint(0, 9, (4, 3))).square().mean()
    for name in ("optimizer0", "optimizer1"):
        state[name].zero_grad()
    loss.backward()
    for name in ("optimizer0", "optimizer1"):
        state[name].step()
    return float(loss)


class Experts(nn.Module):
    """Experts of which some get no token for long."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(4))
        self.now = 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.experts[self.now](x)
        return out


def _experts(make: P) -> Callable[[], State]:
    def made() -> State:
        model = Experts()
        return {"model": model, "optimizer": make(model.parameters())}

    return made


def _route(state: State, step: int) -> float:
    state["model"].now = 0 if step < 3 else step % 3
    return train(state, step)


def _unfreeze(state: State, step: int) -> float:
    state["model"][0].requires_grad_(step >= 3)
    return train(state, step)


def _frozen() -> State:
    state = _with(torch.optim.AdamW)()
    state["model"][0].requires_grad_(False)
    return state


def _group_later() -> State:
    model = _net()
    return {"model": model, "optimizer": torch.optim.AdamW(model[2].parameters())}


def _add_group(state: State, step: int) -> float:
    if step == 2:
        state["optimizer"].add_param_group({"params": list(state["model"][0].parameters()), "lr": 0.5})
    return train(state, step)


def _two_modules() -> State:
    model, head = _net(), nn.Linear(4, 1)
    both = [*model.parameters(), *head.parameters()]
    return {"model": model, "head": head, "optimizer": torch.optim.AdamW(both)}


def _two_modules_step(state: State, step: int) -> float:
    state["optimizer"].zero_grad()
    loss = _loss(state["model"]) + _loss(state["head"])
    loss.backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()
    return loss.item()


def _two_optimizers() -> State:
    model = _net()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model[0].parameters()),
        "optimizer2": torch.optim.SGD(model[2].parameters(), 0.1, momentum=0.9),
    }


def _groups() -> State:
    model = _net()
    groups = [
        {"params": [model[0].weight, model[2].weight], "weight_decay": 0.1, "name": "weights"},
        {"params": [model[0].bias, model[2].bias], "lr": 0.5},
    ]
    return {"model": model, "optimizer": torch.optim.AdamW(groups)}


def _named() -> State:
    model = _net()
    return {"model": model, "optimizer": torch.optim.AdamW(model.named_parameters())}


def _change_options(state: State, step: int) -> float:
    group = state["optimizer"].param_groups[0]
    group["lr"], group["betas"], group["note"] = step / 10, (0.8, 0.9), {"step": step, "t": torch.ones(step)}
    return train(state, step)


def _muon() -> State:
    model = _matrices()
    return {"model": model, "optimizer": torch.optim.Muon(model.parameters())}


# Schedulers -----------------------------------------------------------------------------------------------------


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
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}

    return made


# Modules --------------------------------------------------------------------------------------------------------


class Buffers(nn.Module):
    """Buffers that were None, grow, change their type, are not saved; and an extra state."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind, self.extra = nn.Linear(4, 1), kind, {"calls": 0}
        first = {"None": None, "shrinks": torch.ones(20000)}
        self.register_buffer("held", first.get(kind, torch.zeros(3, dtype=torch.int64)))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls = int(self.count)
        if self.kind == "grows":
            self.held = torch.arange(self.calls)
        if self.kind == "grows large":
            self.held = torch.arange(20000 + self.calls)
        if self.kind == "shrinks":
            self.held = self.held[:-1000].clone()
        if self.kind == "None" and self.calls > 1:
            self.held = torch.full((3,), float(self.calls))
        if self.kind == "type":
            self.held = torch.tensor([7.5, 0.5, self.calls])
        if self.kind == "becomes None":
            self.held = None
        out: Tensor = self.linear(x)
        return out


class Extra(nn.Module):
    """Extra state of any form."""

    def __init__(self, at: Callable[[int], Any]) -> None:
        super().__init__()
        self.linear, self.at, self.calls, self.extra = nn.Linear(4, 1), at, 0, at(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = (self.calls if isinstance(self.calls, int) else 0) + 1
        self.extra = self.at(self.calls)
        out: Tensor = self.linear(x)
        return out

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "extra": self.extra}

    def set_extra_state(self, state: Any) -> None:
        self.calls, self.extra = state["calls"], state["extra"]


class BareExtra(Extra):
    """The extra state is a tensor itself, as with FP8 recipes."""

    def get_extra_state(self) -> Any:
        return torch.arange(self.calls + 1, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        self.calls = len(state) - 1


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x))
        return out


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ParameterList([torch.randn(4), torch.randn(4)])
        self.dict = nn.ParameterDict({"b": torch.randn(4), "a": torch.randn(4)})
        self.odd = nn.ParameterDict({"a_b": torch.randn(1), "é": torch.randn(1)})

    def forward(self, x: Tensor) -> Tensor:
        held = [*self.list, *self.dict.values(), *self.odd.values()]
        return sum((x * each for each in held), torch.zeros_like(x))


class Wide(nn.Module):
    """Parameters of many types and forms."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.narrow = nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
        self.complex = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.turned = nn.Parameter(torch.randn(4, 4).t())
        self.single = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.arange(4), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.register_buffer("eight", torch.randn(4).to(torch.float8_e4m3fn))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("spread", torch.zeros(1).expand(4))

    def forward(self, x: Tensor) -> Tensor:
        complex_part = (self.complex.abs() * x).sum(-1, keepdim=True)
        out: Tensor = (
            self.linear(x @ self.turned) * self.single + complex_part + (self.narrow.float() * x).sum()
        )
        self.flags.logical_not_()
        return out + self.empty.sum()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: PLC0415
            checkpoint_wrapper,
        )

        self.inner = checkpoint_wrapper(_net())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


class Hooked(nn.Module):
    """Renames at load and at save, as many libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.loaded = nn.Linear(4, 1), 0
        self.register_load_state_dict_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.loaded += 1

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def _lazy() -> nn.Module:
    made = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 1))
    made(torch.zeros(2, 4))
    return made


def _averaged(ema: bool) -> Callable[[], State]:
    def made() -> State:
        state = _with(torch.optim.AdamW)()
        options: Any = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)} if ema else {}
        return state | {"average": AveragedModel(state["model"], use_buffers=True, **options)}

    return made


def _copied() -> State:
    state = _with(torch.optim.AdamW)()
    return state | {"teacher": copy.deepcopy(state["model"]).requires_grad_(False)}


def _teach(state: State, step: int) -> float:
    loss = train(state, step)
    with torch.no_grad():
        for mine, theirs in zip(state["teacher"].parameters(), state["model"].parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    return loss


def _scaled_step(state: State, step: int) -> float:
    state["optimizer"].zero_grad()
    loss = _loss(state["model"])
    state["scaler"].scale(loss).backward()
    state["scaler"].step(state["optimizer"])
    state["scaler"].update()
    return loss.item()


def _scaler() -> State:
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    return _with(torch.optim.AdamW)() | {"scaler": scaler}


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch norm, dropout": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 1)
    ),
    "batch norm, no running statistics": lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)),
    "instance norm": lambda: nn.Sequential(nn.InstanceNorm1d(5, affine=True, track_running_stats=True)),
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 1)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 1))),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))),
    "old spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4))),
    "tied weights": Tied,
    "parameter list and dict": Lists,
    "parameters of many types": Wide,
    "activation checkpoints": Checkpointed,
    "load hooks": Hooked,
    "lazy modules, after a forward pass": _lazy,
    "buffer that grows": lambda: Buffers("grows"),
    "buffer that grows, large": lambda: Buffers("grows large"),
    "buffer that shrinks": lambda: Buffers("shrinks"),
    "buffer that was None": lambda: Buffers("None"),
    "buffer that becomes None": lambda: Buffers("becomes None"),
    "buffer that changes its type": lambda: Buffers("type"),
    "extra state, keys appear": lambda: Extra(lambda n: {f"k{each}": each for each in range(n)}),
    "extra state, tensor that grows": lambda: Extra(lambda n: torch.arange(n * 3)),
    "extra state, large tensor that grows": lambda: Extra(lambda n: torch.arange(20000 + n)),
    "extra state, None becomes tensor": lambda: Extra(lambda n: None if n < 2 else torch.ones(n)),
    "extra state, bare tensor": lambda: BareExtra(lambda n: n),
    "extra state, bytes": lambda: Extra(lambda n: b"x" * n),
    "compiled": lambda: torch.compile(_net(), backend="eager"),  # type: ignore[dict-item,return-value]
    "recurrent": lambda: _Recurrent(),  # noqa: PLW0108
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "embedding bag": lambda: _Bag(),  # noqa: PLW0108
    "no parameter used": lambda: _Unused(),  # noqa: PLW0108
}


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 3, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.bag((x.abs() * 3).long().clamp(0, 8))


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 1), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


TRAININGS = [
    *(Training(f"optimizer: {name}", _with(make), train, "optimizers") for name, make in OPTIMIZERS.items()),
    *(
        Training(f"optimizer: {kind}", _with(partial(Odd, kind=kind)), train, "optimizers of your own")
        for kind in ODD
    ),
    Training("optimizer: Muon", _muon, train, "optimizers"),
    Training("optimizer: SparseAdam beside AdamW", _sparse, _sparse_step, "optimizers"),
    *(
        Training(f"experts without a gradient: {name}", _experts(OPTIMIZERS[name]), _route, "optimizers")
        for name in ("SGD with momentum", "Adam", "AdamW, fused", "Adafactor", "RMSprop", "Adagrad")
    ),
    Training("unfrozen later", _frozen, _unfreeze, "optimizers"),
    Training("a parameter group added later", _group_later, _add_group, "optimizers"),
    Training("one optimizer over two modules", _two_modules, _two_modules_step, "optimizers"),
    Training("two optimizers over one module", _two_optimizers, train, "optimizers"),
    Training("parameter groups", _groups, train, "optimizers"),
    Training("named parameters", _named, train, "optimizers"),
    Training("options that change", _with(torch.optim.AdamW), _change_options, "optimizers"),
    *(
        Training(f"scheduler: {name}", _scheduled(make), train, "schedulers")
        for name, make in SCHEDULERS.items()
    ),
    *(
        Training(f"module: {name}", _with(torch.optim.AdamW, make), train, "modules")
        for name, make in MODULES.items()
    ),
    Training("average of weights", _averaged(False), train, "modules"),
    Training("exponential average of weights", _averaged(True), train, "modules"),
    Training("teacher of copied weights", _copied, _teach, "modules"),
    Training("gradient scaler", _scaler, _scaled_step, "schedulers"),
]
