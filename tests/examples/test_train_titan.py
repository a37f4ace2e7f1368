"""The loop in torchtitan's manner: interrupted and compared bit for bit; containers are not saved as optimizers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from holdfast.errors import CheckpointError
from holdfast.integrations.torchtitan import HoldfastCheckpointer, states_of, unwrapped
from holdfast.session import Session
from holdfast.session.state import StateTree
from tests.session.conftest import MakeAgent, make_agent
from tests.session.harness import REPOSITORY

__all__ = ["make_agent"]
SCRIPT = REPOSITORY / "examples" / "train_titan.py"
RANKS, STEPS = 4, 12


class Container(SGD):
    """Of several optimizers, as torchtitan's is one itself."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self.optimizers = [SGD(part.parameters(), lr=0.1) for part in parts]
        super().__init__([each for part in parts for each in part.parameters()], lr=0.1)


class Inner:
    """A checkpointer that remembers what it was asked."""

    def __init__(self) -> None:
        self.states: dict[str, object] = {"model": nn.Linear(2, 2)}
        self.asked: list[object] = []
        self.interval = 500

    def load(self, step: int) -> bool:
        self.asked.append(("load", step))
        return True

    def save(self, curr_step: int, last_step: bool) -> None:
        self.asked.append(("save", curr_step, last_step))


def test_containers_are_replaced_by_what_is_in_them() -> None:
    """One part keeps the name, several are numbered, all else stays."""
    parts: list[nn.Module] = [nn.Linear(2, 2), nn.Linear(2, 2)]
    two, one, other = Container(parts), Container(parts[:1]), object()
    assert unwrapped({"optimizer": two, "train_state": other}) == {
        "optimizer-0": two.optimizers[0],
        "optimizer-1": two.optimizers[1],
        "train_state": other,
    }
    assert unwrapped({"optimizer": one}) == {"optimizer": one.optimizers[0]}


def test_a_container_is_refused_as_an_optimizer() -> None:
    """Torch would make its state by stepping it: the weights would change."""
    model = nn.Linear(2, 2)
    with pytest.raises(
        CheckpointError, match=r"state\['optimizer'\] is a Container of 1 optimizers: expected"
    ):
        StateTree({"model": model, "optimizer": Container([model])})


def test_without_an_agent_the_loops_own_checkpointer_does_all() -> None:
    """Every call and attribute reaches it."""
    inner = Inner()
    outer = HoldfastCheckpointer(inner, Session({}))
    assert outer.load(step=7)
    outer.report(loss=1.0)
    outer.save(8, last_step=True)
    assert inner.asked == [("load", 7), ("save", 8, True)]
    assert outer.interval == 500


def test_the_states_of_a_trainer_whose_own_checkpointing_is_off() -> None:
    """Its checkpointer has none: they are taken from the trainer; a script that does not is refused with the remedy."""
    off = SimpleNamespace(load=lambda step: False, save=lambda *_, **__: None)
    with pytest.raises(CheckpointError, match=r"states=states_of\(trainer\)"):
        HoldfastCheckpointer(off, Session({}))
    parts: list[nn.Module] = [nn.Linear(2, 2)]
    trainer = SimpleNamespace(
        model_parts=parts,
        optimizers=Container(parts),
        lr_schedulers="lr",
        dataloader="data",
        checkpointer=off,
    )
    states = states_of(trainer)
    assert states == {
        "model": parts[0],
        "optimizer": trainer.optimizers,
        "lr_scheduler": "lr",
        "dataloader": "data",
        "train_state": trainer,
    }
    assert not HoldfastCheckpointer(off, Session({}), states=states).load()


class Fused(nn.Module):
    """As torchtitan's fused projections: one parameter, which its state dictionary has as two."""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Parameter(torch.arange(8.0).view(4, 2))
        self.register_state_dict_post_hook(self._split_wqkv_on_save)
        self.register_load_state_dict_pre_hook(self._merge_wqkv_on_load)

    @staticmethod
    def _split_wqkv_on_save(_: nn.Module, state: dict[str, torch.Tensor], prefix: str, __: object) -> None:
        state[f"{prefix}wq"], state[f"{prefix}wkv"] = state.pop(f"{prefix}wqkv").split(2)

    @staticmethod
    def _merge_wqkv_on_load(_: nn.Module, state: dict[str, torch.Tensor], prefix: str, *__: object) -> None:
        state[f"{prefix}wqkv"] = torch.cat([state.pop(f"{prefix}wq"), state.pop(f"{prefix}wkv")])


class Looking(Session):
    """Notes under which names a state would be saved."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__({})
        self.names: list[list[str]] = []
        self.fails = fails

    def _look(self, state: dict[str, nn.Module]) -> None:
        self.names.append([*state["model"].state_dict()])
        if self.fails:
            raise CheckpointError("full")

    def restore(self, state: Any) -> int:
        self._look(state)
        return 0

    def checkpoint(self, state: Any, **_: Any) -> None:
        self._look(state)


@pytest.mark.parametrize("fails", [False, True])
def test_fused_parameters_are_saved_as_they_are(fails: bool) -> None:
    """In our saves and restores only: torchtitan's own have its names, also after an error of ours."""
    model, inner, session = nn.Sequential(Fused(), nn.Linear(2, 2)), Inner(), Looking(fails)
    inner.states = {"model": model}
    outer = HoldfastCheckpointer(inner, session)
    for call in (outer.load, lambda: outer.save(1)):
        with pytest.raises(CheckpointError) if fails else nullcontext():
            call()
    assert session.names == [["0.wqkv", "1.weight", "1.bias"]] * 2
    saved = model.state_dict()
    assert {"0.wq", "0.wkv"} < saved.keys()
    saved["0.wq"] = saved["0.wq"] + 1
    model.load_state_dict(saved)
    assert model.state_dict()["0.wq"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.e2e
@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.timeout(1000)
def test_an_interrupted_run_ends_with_the_same_weights(make_agent: MakeAgent, tmp_path: Path) -> None:
    """FSDP2 x TP, killed and restored from memory: weights and counted tokens are those of a run that was not."""
    whole, broken = make_agent(RANKS), make_agent(RANKS)
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    arguments = ["--steps", STEPS, "--out"]
    whole.start(SCRIPT, [*arguments, tmp_path / "whole"])
    assert whole.join() == [0] * RANKS, whole.output()
    slow, pace = tmp_path / "slow.py", "            self.step += 1\n"
    assert SCRIPT.read_text().count(pace) == 1
    # It does not end before it is killed, however late this process sees that it may be.
    slow.write_text(SCRIPT.read_text().replace(pace, f"{pace}            __import__('time').sleep(1)\n"))
    broken.start(slow, [*arguments, tmp_path / "broken"])
    broken.wait_for(lambda: any(each["step"] >= 5 for each in broken.of("saved")))
    broken.kill()
    step = broken.common_step()
    assert 4 <= step < STEPS
    broken.start(SCRIPT, [*arguments, tmp_path / "broken"], lambda rank: (step, broken.shard(rank, step)))
    assert broken.join() == [0] * RANKS, broken.output()
    assert min(each["step"] for each in broken.of("step")) == step + 1
    assert all(each["loss"] and each["grad_norm"] for each in broken.of("step"))
    for rank in range(RANKS):
        expected, found = (torch.load(tmp_path / name / f"{rank}.pt") for name in ("whole", "broken"))
        assert found["tokens_seen"] == expected["tokens_seen"] == STEPS * 2 * 4 * 17
        assert expected["weights"].keys() == found["weights"].keys()
        assert all(torch.equal(each, found["weights"][name]) for name, each in expected["weights"].items())
