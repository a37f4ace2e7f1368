"""Modules, averages of them, and teachers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.session.kinds.training import State, Training, net, optimized, train


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

        self.inner = checkpoint_wrapper(net())

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


class SavedByHooks(nn.Module):
    """A count that hooks write into a buffer when it is saved, and read from it when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 2), 0
        self.register_buffer("seen", torch.zeros(()))
        self.register_state_dict_pre_hook(lambda *_: self.seen.fill_(self.calls))
        self.register_load_state_dict_post_hook(lambda *_: setattr(self, "calls", int(self.seen)))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.linear(x) / self.calls
        return out


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def _symmetric(linear: nn.Linear) -> nn.Module:
    made = parametrizations.weight_norm(linear)
    return nn.utils.parametrize.register_parametrization(made, "weight", Symmetric())


def _quantization_aware(module: nn.Module) -> nn.Module:
    """With observers, whose ranges and scales are buffers."""
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat  # noqa: PLC0415

    module.qconfig = get_default_qat_qconfig("fbgemm")
    found: nn.Module = prepare_qat(module.train())
    return found


def _lazy() -> nn.Module:
    made = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 1))
    made(torch.zeros(2, 4))
    return made


def _averaged(ema: bool) -> Callable[[], State]:
    def made() -> State:
        state = optimized(torch.optim.AdamW)()
        options: Any = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)} if ema else {}
        return state | {"average": AveragedModel(state["model"], use_buffers=True, **options)}

    return made


def _copied() -> State:
    state = optimized(torch.optim.AdamW)()
    return state | {"teacher": copy.deepcopy(state["model"]).requires_grad_(False)}


def _teach(state: State, step: int) -> float:
    loss = train(state, step)
    with torch.no_grad():
        for mine, theirs in zip(state["teacher"].parameters(), state["model"].parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    return loss


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch norm, dropout": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 1)
    ),
    "batch norm, no running statistics": lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)),
    "instance norm": lambda: nn.Sequential(nn.InstanceNorm1d(5, affine=True, track_running_stats=True)),
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 1)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 1))),
    "two parametrizations of one weight": lambda: nn.Sequential(_symmetric(nn.Linear(4, 4)), nn.Linear(4, 2)),
    "quantization-aware": lambda: _quantization_aware(net()),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))),
    "old spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4))),
    "tied weights": Tied,
    "parameter list and dict": Lists,
    "parameters of many types": Wide,
    "activation checkpoints": Checkpointed,
    "load hooks": Hooked,
    "hooks that write what is saved": SavedByHooks,
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
    "compiled": lambda: torch.compile(net(), backend="eager"),  # type: ignore[dict-item,return-value]
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
    *(
        Training(f"module: {name}", optimized(torch.optim.AdamW, make), train, "modules")
        for name, make in MODULES.items()
    ),
    Training("average of weights", _averaged(False), train, "modules"),
    Training("exponential average of weights", _averaged(True), train, "modules"),
    Training("teacher of copied weights", _copied, _teach, "modules"),
]
