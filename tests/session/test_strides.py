"""Strides of tensors: a transposed matrix gives other last bits in the next step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.session.conftest import MakeAgent
from tests.session.small import session_of

pytestmark = pytest.mark.torch


def _training() -> dict[str, Any]:
    model = nn.Linear(8, 6)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@pytest.mark.parametrize(
    ("made", "stride"),
    [
        (torch.arange(48.0).view(6, 8).t(), (1, 8)),
        (torch.arange(4096.0).view(64, 64).t()[:8], (1, 8)),  # of a larger one: without its gaps
        (torch.arange(48.0).view(2, 3, 2, 4).to(memory_format=torch.channels_last), (24, 1, 12, 3)),
    ],
)
def test_optimizer_state_comes_back_as_it_lay(
    make_agent: MakeAgent, made: torch.Tensor, stride: tuple[int, ...]
) -> None:
    """Values, and the order of the dimensions."""
    agent, state = make_agent(), _training()
    state["optimizer"].state[state["model"].weight]["basis"] = made
    session = session_of(agent)
    session.restore(state)
    session.step(1)
    session.checkpoint(state)
    assert session.flush()
    fresh = _training()
    session_of(agent, (1, agent.shard(0, 1))).restore(fresh)
    found = fresh["optimizer"].state[fresh["model"].weight]["basis"]
    assert torch.equal(found, made)
    assert found.stride() == stride
