"""torchtitan's own containers and its own ``Trainer``, where they are installed: ``make test-frameworks``.

All that it depends on is too much for every run of the tests; ``examples/train_titan.py`` is tested in each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import Session
from holdfast.integrations.torchtitan import HoldfastCheckpointer
from holdfast.storage.objects.s3 import S3Store
from tests.integrations.lives import Job, ends_the_same
from tests.session.conftest import MakeAgent
from tests.session.harness import FakeAgent

pytest.importorskip("torchtitan", reason="too much to install for every run")
pytestmark = [pytest.mark.e2e, pytest.mark.torch]


class _Inner:
    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def load(self, step: int) -> bool:
        return False

    def save(self, curr_step: int, last_step: bool) -> None:
        pass


class _TrainState:
    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.step = saved["step"]


def _life(agent: FakeAgent, until: int) -> dict[str, torch.Tensor]:
    from torchtitan.components.checkpointer.base import ModelWrapper  # noqa: PLC0415
    from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer  # noqa: PLC0415
    from torchtitan.components.optimizer.optimizer import (  # noqa: PLC0415
        OptimizersContainer,
        ParamGroupConfig,
    )

    step = agent.common_step() if agent.epoch else 0
    restore = (step, agent.shard(0, step)) if step else None
    agent.epoch += 1
    torch.manual_seed(5)
    parts: list[nn.Module] = [nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))]
    groups = [
        ParamGroupConfig(pattern=name, optimizer_name="AdamW", optimizer_kwargs={"lr": lr})
        for name, lr in (("bias", 0.01), (".*", 0.05))
    ]
    options = OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
    optimizers = OptimizersContainer(options, model_parts=parts)
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=12)
    state = _TrainState()
    states = {
        "model": ModelWrapper(parts),
        "optimizer": optimizers,
        "lr_scheduler": schedulers,
        "train_state": state,
    }
    session = Session(agent.environ(0, restore))
    checkpointer = HoldfastCheckpointer(_Inner(states), session)
    checkpointer.load()
    while state.step < until:
        state.step += 1
        optimizers.zero_grad()
        loss = parts[0](torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizers.step()
        schedulers.step()
        checkpointer.report(loss=loss.item())
        checkpointer.save(state.step)
    session.flush()
    return parts[0].state_dict()


def test_its_containers_go_on_bit_for_bit(make_agent: MakeAgent) -> None:
    """Parameter groups, optimizer state, schedule, dropout."""
    whole, broken = make_agent(1), make_agent(1)
    expected = _life(whole, 12)
    _life(broken, 5)
    found = _life(broken, 12)
    assert [each["step"] for each in broken.of("step")] == list(range(6, 13))
    assert all(torch.equal(each, found[name]) for name, each in expected.items())


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["plain", "workers", "fused"])
def test_a_killed_trainer_ends_the_same(
    make_agent: MakeAgent, objects: S3Store, tmp_path: Path, kind: str
) -> None:
    """From memory and from S3: what each step read, its loss and gradient norm, and all that training ends with."""
    ends_the_same(make_agent, objects, tmp_path, Job("titan_trainer", kind, ranks=2, needs="datasets"))
