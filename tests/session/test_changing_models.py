"""Models that are taken apart while they train: what is saved has the names of the moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import holdfast
from holdfast.errors import CheckpointError
from holdfast.session import Session
from tests.session.conftest import MakeAgent
from tests.session.small import session_of

pytestmark = pytest.mark.torch


def trained() -> dict[str, Any]:
    """A model of equal layers, and its optimizer."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}


def step(state: dict[str, Any]) -> None:
    """One step on fixed data."""
    state["optimizer"].zero_grad()
    state["model"](torch.arange(8.0).view(2, 4)).square().sum().backward()
    state["optimizer"].step()


def saved(session: Session, state: dict[str, Any], number: int | np.int64) -> None:
    """A step, saved."""
    step(state)
    session.step(number)
    session.checkpoint(state)
    assert session.flush()


def swap(model: nn.Sequential) -> None:
    model[0], model[2] = model[2], model[0]


def shrink(model: nn.Sequential) -> None:
    prune.l1_unstructured(model[0], "weight", amount=1)


def wrap(model: nn.Sequential) -> None:
    model[0] = nn.Sequential(model[0])


@pytest.mark.parametrize("change", [swap, shrink, wrap])
def test_moments_follow_layers_that_get_other_names(change: Any, make_agent: MakeAgent) -> None:
    """Restored into a model that was changed in the same way, training goes on bit for bit."""
    agent = make_agent()
    session, state = session_of(agent), trained()
    session.restore(state)
    saved(session, state, 1)
    change(state["model"])
    saved(session, state, np.int64(2))
    fresh = trained()
    change(fresh["model"])
    with torch.no_grad():
        for each in fresh["model"].parameters():
            each.zero_()
    assert session_of(agent, (2, agent.shard(0, 2))).restore(fresh) == 2
    for each in (state, fresh):
        step(each)
    for one, other in zip(state["model"].parameters(), fresh["model"].parameters(), strict=True):
        assert torch.equal(one, other)


def test_parameters_that_change_their_type_come_back_in_it(make_agent: MakeAgent) -> None:
    """Restored into the model of the beginning, where a copy would round them."""
    agent = make_agent()
    session, model = session_of(agent), nn.Linear(2, 2)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    session.restore(state)
    for number in (1, 2):
        session.step(number)
        session.checkpoint(state)
        assert session.flush()
        model.double()
        with torch.no_grad():
            model.weight.fill_(1 + 2**-40)
    session.step(3)
    session.checkpoint(state)
    assert session.flush()
    fresh = nn.Linear(2, 2)
    again = {"model": fresh, "optimizer": torch.optim.SGD(fresh.parameters(), 0.1)}
    assert session_of(agent, (3, agent.shard(0, 3))).restore(again) == 3
    for name, each in model.named_parameters():
        assert fresh.get_parameter(name).dtype == torch.float64
        assert torch.equal(fresh.get_parameter(name), each)
    assert again["optimizer"].param_groups[0]["params"] == [*fresh.parameters()]


def test_parameters_that_changed_their_size_are_refused_before_anything_is_copied(
    make_agent: MakeAgent,
) -> None:
    """The error of a script that begins with the earlier size names the path and both sizes."""
    agent = make_agent()
    session, state = session_of(agent), {"first": nn.Linear(2, 2), "model": nn.Linear(2, 2)}
    session.restore(state)
    for number in (1, 2, 3):
        session.step(number)
        session.checkpoint(state)
        assert session.flush()
        state["model"].weight.data = torch.ones(3, 2)
        state["model"].bias.data = torch.ones(3)
    fresh = {"first": nn.Linear(2, 2), "model": nn.Linear(2, 2)}
    before = fresh["first"].weight.clone()
    message = r"model\.weight: the checkpoint has a tensor \[3, 2\] of torch\.float32, the model one \[2, 2\]"
    with pytest.raises(CheckpointError, match=message):
        session_of(agent, (3, agent.shard(0, 3))).restore(fresh)
    assert torch.equal(fresh["first"].weight, before)


def test_a_layer_that_the_optimizer_lost_is_a_failed_save(make_agent: MakeAgent) -> None:
    """It could not be restored: the save is counted as failed, and training goes on."""
    agent = make_agent()
    session, state = session_of(agent), trained()
    session.restore(state)
    saved(session, state, 1)
    state["model"][2] = nn.Linear(4, 4)
    saved(session, state, 2)
    assert (session.counts.saved, session.counts.failed) == (1, 1)
    agent.wait_for(lambda: agent.of("save_failed"))
    assert "a layer was replaced" in agent.of("save_failed")[0]["reason"]


def test_a_step_that_is_no_whole_number_is_refused(make_agent: MakeAgent) -> None:
    """The message states what was expected."""
    session = session_of(make_agent())
    with pytest.raises(TypeError, match=r"Session.step\(1.5\): expected an integer"):
        session.step(1.5)  # type: ignore[arg-type]


class Words:
    """A table that gains a word at each step."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"words": dict(self.words)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.words = saved["words"]


def test_rules_that_are_written_at_every_call_need_no_new_plan(make_agent: MakeAgent) -> None:
    """The plan of the objects from the save before is not lost with the dictionary that they came in."""
    agent = make_agent()
    session, words = session_of(agent), Words()

    def state() -> dict[str, Any]:
        return {"words": holdfast.Part(words, merge=lambda each: each[0], split=lambda whole, *_: whole)}

    session.restore(state())
    for number in range(1, 4):
        words.words["last"] = number
        session.step(number)
        session.checkpoint(state())
        assert session.flush()
    planner = session._saver._planner
    assert planner.tree_of(state()) is planner.tree_of(state())
    assert planner.tree_of({"words": holdfast.Part(words, strict=False)}) is not planner.tree_of(state())


def test_a_table_that_grows_needs_one_new_plan_only(make_agent: MakeAgent) -> None:
    """Its words come back in order; the layout is made again once, not at every step."""
    agent = make_agent()
    session, words = session_of(agent), Words()
    session.restore({"words": words})
    for number in range(1, 7):
        words.words[f"word {number}"] = number
        session.step(number)
        session.checkpoint({"words": words})
        assert session.flush()
    assert session._saver._planner._plans <= 2
    fresh = Words()
    session_of(agent, (6, agent.shard(0, 6))).restore({"words": fresh})
    assert list(fresh.words.items()) == list(words.words.items())


class Grown(nn.Module):
    """A model of two versions of the code: the later one has a head, and no scale any more."""

    def __init__(self, *, later: bool) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        if later:
            self.head = nn.Linear(4, 2)
        else:
            self.scale = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize("strict", [True, False])
def test_a_part_may_differ_where_its_script_says_so(strict: bool, make_agent: MakeAgent) -> None:
    """The common part comes back, the new part stays as it was made; else it is refused, by name."""
    agent, old = make_agent(), Grown(later=False)
    session = session_of(agent)
    session.restore({"model": old})
    session.step(1)
    session.checkpoint({"model": old})
    assert session.flush()
    new = Grown(later=True)
    made = {name: each.clone() for name, each in new.state_dict().items()}
    again = session_of(agent, (1, agent.shard(0, 1)))
    if strict:
        with pytest.raises(CheckpointError, match=r"model\.(head|scale)"):
            again.restore({"model": new})
        return
    assert again.restore({"model": holdfast.Part(new, strict=False)}) == 1
    now = new.state_dict()
    assert all(torch.equal(now[name], each) for name, each in old.state_dict().items() if name in now)
    assert all(torch.equal(now[name], made[name]) for name in now if name.startswith("head."))
