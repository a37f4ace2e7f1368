"""Shared by the scripts of this folder: the loop around a step, its end in the middle, and the comparison."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast import Session

RANK = int(os.environ.get("RANK", "0"))
KIND = sys.argv[1]
OUT = Path(sys.argv[2])
STEPS = 9
DIES_AT = int(sys.argv[3]) if len(sys.argv) > 3 else 0
"""Step in which this process kills itself, after the gradients and the optimizer, before the save."""

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)


def train(state: Mapping[str, Any], step: Callable[[], Any]) -> None:
    """Restore, then every step: ``step`` gives back what it read, which is noted in a file, and the state is saved."""
    session = Session()
    for number in range(session.restore(state) + 1, STEPS + 1):
        note(number, step())
        if number == DIES_AT:
            die(session)
        session.step(number)
        session.checkpoint(state)
    session.flush()


def die(session: Session) -> None:
    """Kill this process once all ranks are here: one that lost another within a collective would end by an error."""
    session.flush()
    (OUT / f"dies-{RANK}").touch()
    ranks, deadline = int(os.environ.get("WORLD_SIZE", "1")), time.monotonic() + 90
    while len(list(OUT.glob("dies-*"))) < ranks and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def note(number: int, read: Any) -> None:
    """Note the data that this rank read in a step."""
    digest = hashlib.sha256(repr(plain(read)).encode()).hexdigest()
    with (OUT / f"read-{RANK}.txt").open("a") as notes:
        notes.write(f"{number} {digest}\n")


def finish(**parts: Any) -> None:
    """Write what training ended with, as plain python."""
    torch.save(plain(parts), OUT / f"end-{RANK}.pt")


def plain(value: Any) -> Any:
    """``value`` as python's own types and plain tensors, with the types of all else by name."""
    if isinstance(value, Tensor):
        return _plain_tensor(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str | int) else repr(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(plain(each) for each in value)]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if type(value).__repr__ is not object.__repr__:
        return repr(value)
    return [type(value).__qualname__, plain(vars(value))]


def _plain_tensor(value: Tensor) -> Any:
    if hasattr(value, "_local_tensor"):
        return ["DTensor", str(value.placements), plain(value._local_tensor)]  # type: ignore[attr-defined]
    if hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        return [
            type(value).__qualname__,
            {name: plain(getattr(value, name)) for name in names},
            repr(context),
        ]
    return value.detach().as_subclass(Tensor).clone()  # type: ignore[no-untyped-call]


def optimizer_state(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state by parameter names, and the options of its groups."""
    named = {id(each): name for name, each in module.named_parameters()}
    groups = [
        {key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    return {"state": {named[id(key)]: each for key, each in optimizer.state.items()}, "groups": groups}
