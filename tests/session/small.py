"""A small state of everything that a session saves, a step of it, and a loop."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.session import Session
from holdfast.storage.checkpoints.load import reader
from tests.session.harness import FakeAgent


class Counter:
    """A small Stateful."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def training() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "counter": Counter(),
    }


def train(state: dict[str, Any]) -> float:
    loss = (state["model"](torch.randn(8, 3)) * random.random() * np.random.rand()).square().mean()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["counter"].value += 1
    return loss.item()


def run(session: Session, state: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for step in range(session.restore(state) + 1, steps + 1):
        losses.append(train(state))
        session.step(step, loss=losses[-1])
        session.checkpoint(state)
    assert session.flush()
    return losses


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def session_of(agent: FakeAgent, restore: tuple[int, Path] | None = None, **extra: str) -> Session:
    agent.epoch += 1
    return Session(agent.environ(0, restore, **extra))


def contents(path: Path) -> dict[str, Any]:
    """Every item of a shard, by full name."""

    def template(metadata: Metadata) -> dict[str, Any]:
        return {
            name: torch.empty(each.size, dtype=each.properties.dtype)
            if isinstance(each, TensorStorageMetadata)
            else None
            for name, each in metadata.state_dict_metadata.items()
        }

    return reader.load(path, template)
