"""Small trainings of many kinds, on a device: what a restore has to bring back, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

VOCABULARY, WIDTH, CONTEXT, BATCH = 64, 64, 16, 8


@dataclass
class Training:
    """A state, and what one step does to it."""

    state: dict[str, Any]
    step: Callable[[int], object]


class Block(nn.Module):
    """Attention and a perceptron, both with dropout: the device's random numbers count."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attends, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next layer's input."""
        q, k, v = self.attends(self.before(x)).chunk(3, -1)
        weights = self.drop((q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1))
        x = x + self.drop(self.out(weights @ v))
        return x + self.drop(self.down(gelu(self.up(self.between(x)))))


class Transformer(nn.Module):
    """Its head's weight is that of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token."""
        scores: Tensor = self.head(self.blocks(self.embed(tokens)))
        return scores


def tokens_of(step: int, device: torch.device) -> Tensor:
    """Return the data of a step."""
    draw = torch.Generator().manual_seed(step)
    return torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=draw).to(device)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of predicting each token by those before it."""
    scores = model(tokens[:, :-1])
    return cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


def _plain(
    device: torch.device, optimizer: Callable[[Any], torch.optim.Optimizer], *, autocast: bool = False
) -> Training:
    model = Transformer().to(device)
    made = optimizer(model.parameters())

    def step(number: int) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = loss_of(model, tokens_of(number, device))
        made.zero_grad()
        loss.backward()
        made.step()

    return Training({"model": model, "optimizer": made}, step)


def foreach(device: torch.device) -> Training:
    """In single precision."""
    return _plain(device, lambda p: torch.optim.AdamW(p, 1e-2, foreach=True))


def autocast_fused(device: torch.device) -> Training:
    """The optimizer's step counts lie on the device."""
    return _plain(device, lambda p: torch.optim.AdamW(p, 1e-2, fused=True), autocast=True)


def momentum(device: torch.device) -> Training:
    """SGD."""
    return _plain(device, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True))


def bfloat16_state(device: torch.device) -> Training:
    """Parameters and optimizer state in half the bytes."""
    training = _plain(device, lambda p: torch.optim.AdamW(p, 1e-2))
    training.state["model"].bfloat16()
    return training


def scaled(device: torch.device) -> Training:
    """Half precision, with a scaler whose first steps overflow."""
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**40, growth_interval=2)

    def step(number: int) -> None:
        with torch.autocast(device.type, torch.float16):
            loss = loss_of(model, tokens_of(number, device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training({"model": model, "optimizer": optimizer, "scaler": scaler}, step)


def compiled(device: torch.device) -> Training:
    """A model that torch has compiled."""
    plain = Transformer().to(device)
    model = torch.compile(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, tokens_of(number, device)).backward()
        optimizer.step()

    return Training({"model": model, "optimizer": optimizer}, step)


def averaged(device: torch.device) -> Training:
    """A moving average beside the model, a schedule, and a frozen half."""
    model = Transformer().to(device)
    model.blocks[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 20)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, tokens_of(number, device)).backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)

    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "average": average}
    return Training(state, step)


def images(device: torch.device) -> Training:
    """Convolutions in the order of channels last, and running statistics."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(16, 8, 3), nn.Flatten()
    )
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(number: int) -> None:
        draw = torch.Generator().manual_seed(number)
        batch = torch.randn(4, 3, 8, 8, generator=draw).to(device, memory_format=torch.channels_last)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return Training({"model": model, "optimizer": optimizer}, step)


class OnHost(torch.optim.Optimizer):
    """Keeps its momentum in host memory, as offloading optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Add the momentum."""
        assert closure is None
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                held = self.state[each]
                if "momentum" not in held:
                    held["momentum"] = torch.zeros(each.shape, pin_memory=each.is_cuda)
                held["momentum"].mul_(0.9).add_(each.grad.to("cpu"))
                each.add_(held["momentum"].to(each.device), alpha=-group["lr"])


def offloaded(device: torch.device) -> Training:
    """The optimizer's state is in pinned host memory; and there is a second model on the host."""
    training = _plain(device, OnHost)
    beside = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(beside.parameters(), 0.1)

    def step(number: int) -> None:
        training.step(number)
        optimizer.zero_grad()
        beside(torch.full((2, 4), float(number))).sum().backward()
        optimizer.step()

    return Training(training.state | {"beside": beside, "its_optimizer": optimizer}, step)


class Kinds:
    """Tensors of every kind, each of which a step changes."""

    def __init__(self, device: torch.device) -> None:
        plain = torch.arange(64.0, device=device).reshape(8, 8)
        image = torch.arange(2.0 * 3 * 4 * 5, device=device).reshape(2, 3, 4, 5)
        self.held: dict[str, Tensor] = {
            "float8_e4m3fn": plain.to(torch.float8_e4m3fn),
            "float8_e5m2": plain.to(torch.float8_e5m2),
            "bfloat16": plain.bfloat16(),
            "complex": torch.complex(plain, -plain),
            "flags": plain > 9,
            "empty": plain[:0].clone(),
            "number": plain[0, 0].clone(),
            "host": torch.arange(9.0),
            "pinned": torch.arange(9.0, pin_memory=device.type == "cuda"),
            "strided": plain.clone()[:, ::2],
            "transposed": plain.clone().t(),
            "channels_last": image.to(memory_format=torch.channels_last),
            "expanded": plain[:, :1].clone().expand(8, 8),
            "conjugated": torch.complex(plain, plain).conj(),
        }

    def step(self, number: int) -> None:
        """Change each, as its kind allows."""
        for name, each in self.held.items():
            if name.startswith("float8"):
                each.copy_((each.float() / 2 + number).to(each.dtype))
            elif name == "flags":
                each.logical_not_()
            elif name == "expanded":
                self.held[name] = (each[:, :1] + number).expand(8, 8)
            else:
                each.mul_(0.5).add_(number)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors themselves."""
        return dict(self.held)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take those of the checkpoint."""
        self.held = dict(state)


def kinds(device: torch.device) -> Training:
    """Tensors of all kinds, without a model."""
    made = Kinds(device)
    return Training({"kinds": made}, made.step)


def recorded(device: torch.device) -> Training:
    """A whole step as one CUDA graph, recorded before the restore: what is loaded must lie where the graph looks."""
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, capturable=True)
    tokens = tokens_of(0, device)

    def eager() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, tokens).backward()
        optimizer.step()

    began = [each.detach().clone() for each in model.parameters()]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    with torch.no_grad():
        for each, first in zip(model.parameters(), began, strict=True):
            each.copy_(first)
            for held in optimizer.state[each].values():
                held.zero_()
    torch.manual_seed(5)

    def step(number: int) -> None:
        tokens.copy_(tokens_of(number, device))
        graph.replay()

    return Training({"model": model, "optimizer": optimizer}, step)


TRAININGS: dict[str, Callable[[torch.device], Training]] = {
    each.__name__: each
    for each in (
        foreach,
        autocast_fused,
        momentum,
        bfloat16_state,
        scaled,
        averaged,
        images,
        offloaded,
        kinds,
        recorded,
        compiled,
    )
}


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of a state's tensors, with type, shape, stride and device, and of the random states."""
    found: dict[str, str] = {}
    for name, part in state.items():
        for path, value in _walk(name, part.state_dict()):
            found[path] = _digest(value)
    found["random of the host"] = _digest(torch.get_rng_state())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["random of the GPU"] = _digest(torch.cuda.get_rng_state())
    return found


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _walk(f"{path}.{key}", each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _walk(f"{path}.{number}", each)
    else:
        yield path, value


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    layout = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device.type}"
    data = value.detach().resolve_conj().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return f"{layout} {hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]}"
