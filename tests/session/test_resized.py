"""A script may resize its tensors in place, as torch's observers and growing buffers do, after any save and restore.

torch refuses to resize a storage that numpy has seen, or that is memory of another owner.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.session.conftest import MakeAgent
from tests.session.kinds.values import Holder
from tests.session.small import session_of

pytestmark = pytest.mark.torch
SIZES = {"nothing": 0, "small": 5, "large": 1 << 16}
TYPES = {"float": torch.float32, "half": torch.bfloat16, "bytes": torch.uint8, "flags": torch.bool}


class Observed(nn.Module):
    """Buffers of several sizes and types, and one that is another's view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        for size, count in SIZES.items():
            for kind, dtype in TYPES.items():
                self.register_buffer(f"{size}_{kind}", torch.ones(count, dtype=dtype))


def values(step: int) -> dict[str, Any]:
    """Tensors in a part of another kind."""
    made: dict[str, Any] = {
        f"{size} {kind}": torch.full((count,), step, dtype=dtype)
        for size, count in SIZES.items()
        for kind, dtype in TYPES.items()
    }
    return made | {"grows": torch.zeros(step), "sparse": torch.eye(3).to_sparse()}


def made() -> tuple[dict[str, Any], Observed, Holder, torch.optim.Optimizer]:
    model, holder = Observed(), Holder(values)
    optimizer = torch.optim.AdamW(model.parameters())
    return {"model": model, "optimizer": optimizer, "holder": holder}, model, holder, optimizer


def step_of(model: Observed, optimizer: torch.optim.Optimizer) -> None:
    model.linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def resize(model: Observed, holder: Holder, optimizer: torch.optim.Optimizer) -> None:
    """Resize all of it in place."""
    held: dict[str, Tensor] = dict(model.named_buffers())
    held |= {name: each for name, each in holder.value.items() if name != "sparse"}
    for number, each in enumerate(optimizer.state.values()):
        held |= {f"state {number} {name}": tensor for name, tensor in each.items()}
    for name, each in held.items():
        try:
            each.resize_(2 * each.numel() + 100)
        except RuntimeError as error:
            pytest.fail(f"{name}: {error}")


def test_tensors_are_resized_after_saves_and_after_a_restore(make_agent: MakeAgent) -> None:
    agent = make_agent()
    state, model, holder, optimizer = made()
    session = session_of(agent)
    session.restore(state)
    for step in (1, 2, 3):  # by a plan, and where it does not fit any more
        holder.advance(step)
        step_of(model, optimizer)
        session.step(step)
        session.checkpoint(state)
    assert session.flush()
    resize(model, holder, optimizer)

    state, model, holder, optimizer = made()
    session = session_of(agent, (3, agent.shard(0, 3)))
    assert session.restore(state) == 3
    resize(model, holder, optimizer)
