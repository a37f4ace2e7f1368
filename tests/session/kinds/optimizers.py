"""Optimizers: torch's own, odd ones, and what happens to them while they train."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.session.kinds.training import P, State, Training, loss_of, net, optimized, train
from tests.session.kinds.values import Scaled


def _matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))


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
        # Not the largest: a rank without elements has none, and would raise while the others wait for it.
        state["scale"] = value.abs().sum().reshape(1) / 127 + 1e-12
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
        before = state["m"].codes.float() * state["m"].scale if state else 0
        value = before * 0.5 + param.grad.abs()
        scale = value.sum().reshape(1) / 255 + 1e-12
        state["m"] = Scaled((value / scale).to(torch.uint8), scale)
        return param.grad

    def halved(self, param: Tensor, state: Any) -> Tensor:
        state["m"] = (state.get("m", torch.zeros_like(param)).float() * 0.9 + param.grad).to(torch.bfloat16)
        return state["m"].float()

    def scalar(self, param: Tensor, state: Any) -> Tensor:
        state["best"] = min(state.get("best", float("inf")), float(param.grad.norm()))
        state["where"] = (state["best"], "norm", None)
        return param.grad * state["best"]


class OfItsPart(torch.optim.Optimizer):
    """Works on this rank's part of its parameters alone; its state is of that part, plain or of a class of its own."""

    def __init__(self, params: Any, kind: str) -> None:
        super().__init__(params, {"lr": 0.1, "kind": kind})
        self.begin()

    def begin(self) -> None:
        """Make its state, if it does that at once."""
        for group in self.param_groups:
            for param in group["params"] if group["kind"] == "plain, at once" else ():
                self.state[param] = {"m": torch.zeros_like(_local(param)), "sums": [torch.zeros(())]}

    def kept(self, param: Tensor) -> dict[str, Any]:
        """Its state beside a parameter: a plain part of it that was made at once as the part that it is."""
        held = dict(self.state[param])
        return held | {"m": _wrapped(held["m"], param)} if "sums" in held else held

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                state, grad = self.state[param], _local(param.grad)
                value = _local(param)
                if group["kind"] == "plain, at once":
                    state["m"].mul_(0.9).add_(grad)
                    state["sums"][0] += 1
                    value.add_(state["m"], alpha=-0.1)
                elif group["kind"] == "plain":
                    state["m"] = state.get("m", torch.zeros_like(value)) * 0.9 + grad
                    value.add_(state["m"], alpha=-0.1)
                else:
                    was = _local(state["m"]) if state else None
                    found = (was.codes.float() * was.scale if was is not None else 0) * 0.5 + grad.abs()
                    scale = found.sum().reshape(1) / 255 + 1e-12
                    made = Scaled((found / scale).to(torch.uint8), scale)
                    state["m"] = _wrapped(made, param)
                    value.add_(found, alpha=-0.1)


def _wrapped(made: Tensor, param: Tensor) -> Tensor:
    if not isinstance(param, DTensor):
        return made
    return DTensor.from_local(
        made, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )


def _local(tensor: Tensor) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


class Decaying(torch.optim.SGD):
    """Counts its steps beside its state, in a state dictionary of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, 0.1, momentum=0.9)
        self.seen, self.scale = 0, torch.ones(2)

    def step(self, closure: Any = None) -> Any:
        self.seen, self.scale = self.seen + 1, self.scale * 0.9
        for group in self.param_groups:
            group["lr"] = 0.1 * float(self.scale[0]) / self.seen
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": self.seen, "scale": self.scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen, self.scale = state_dict["seen"], state_dict["scale"].clone()
        super().load_state_dict(state_dict)


class Around(torch.optim.Optimizer):
    """Has another optimizer do the work, which keeps the state."""

    def __init__(self, params: Any) -> None:
        held = list(params)
        super().__init__(held, {})
        self.inner = torch.optim.Adam(held, 0.1)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def _around() -> State:
    state = optimized(Around)()
    return state | {"inner": state["optimizer"].inner}


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
    state = optimized(torch.optim.AdamW)()
    state["model"][0].requires_grad_(False)
    return state


def _group_later() -> State:
    model = net()
    return {"model": model, "optimizer": torch.optim.AdamW(model[2].parameters())}


def _add_group(state: State, step: int) -> float:
    if step == 2:
        state["optimizer"].add_param_group({"params": list(state["model"][0].parameters()), "lr": 0.5})
    return train(state, step)


def _two_modules() -> State:
    model, head = net(), nn.Linear(4, 1)
    both = [*model.parameters(), *head.parameters()]
    return {"model": model, "head": head, "optimizer": torch.optim.AdamW(both)}


def _two_modules_step(state: State, step: int) -> float:
    state["optimizer"].zero_grad()
    loss = loss_of(state["model"]) + loss_of(state["head"])
    loss.backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()
    return loss.item()


def _two_optimizers() -> State:
    model = net()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model[0].parameters()),
        "optimizer2": torch.optim.SGD(model[2].parameters(), 0.1, momentum=0.9),
    }


def _groups() -> State:
    model = net()
    groups = [
        {"params": [model[0].weight, model[2].weight], "weight_decay": 0.1, "name": "weights"},
        {"params": [model[0].bias, model[2].bias], "lr": 0.5},
    ]
    return {"model": model, "optimizer": torch.optim.AdamW(groups)}


def _named() -> State:
    model = net()
    return {"model": model, "optimizer": torch.optim.AdamW(model.named_parameters())}


def _change_options(state: State, step: int) -> float:
    group = state["optimizer"].param_groups[0]
    group["lr"], group["betas"], group["note"] = step / 10, (0.8, 0.9), {"step": step, "t": torch.ones(step)}
    return train(state, step)


def _muon() -> State:
    model = _matrices()
    return {"model": model, "optimizer": torch.optim.Muon(model.parameters())}


TRAININGS = [
    *(
        Training(f"optimizer: {name}", optimized(make), train, "optimizers")
        for name, make in OPTIMIZERS.items()
    ),
    *(
        Training(f"optimizer: {kind}", optimized(partial(Odd, kind=kind)), train, "optimizers of your own")
        for kind in ODD
    ),
    *(
        Training(
            f"optimizer of its part of parameters: {kind}",
            optimized(partial(OfItsPart, kind=kind), _wide),
            train,
            "optimizers of your own",
        )
        for kind in ("plain", "plain, at once", "class")
    ),
    Training("optimizer: more than state and groups", optimized(Decaying), train, "optimizers of your own"),
    Training("an optimizer around another one, both given", _around, train, "optimizers of your own"),
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
    Training("options that change", optimized(torch.optim.AdamW), _change_options, "optimizers"),
]
