"""A state that comes from another job's checkpoint, or from one of stock torch: the parts that are named, no others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from holdfast import Part, Session
from holdfast.agent import wire
from holdfast.agent.ranks.run import Restored
from holdfast.errors import CheckpointError
from holdfast.models.start_from import StartFrom
from holdfast.session.start_from import start_from
from holdfast.storage.checkpoints.format.names_only import has_part, names_in, parts_of
from tests.session.conftest import MakeAgent
from tests.session.small import run, seed, session_of, train, training
from tests.storage.checkpoints.publish import publish

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*assuming the intent")]


def trained(steps: int = 3) -> dict[str, Any]:
    state = training()
    for _ in range(steps):
        train(state)
    return state


def stock(state: dict[str, Any], folder: Path, *, top: bool = False, prefix: str = "model") -> StartFrom:
    """A model and its optimizer as stock torch saves them; ``top``: the model's names alone."""
    model = get_model_state_dict(state["model"])
    optimizer = get_optimizer_state_dict(state["model"], state["optimizer"])
    saved = model if top else {prefix: model, "optimizer": optimizer}
    dcp.save(saved, checkpoint_id=folder, no_dist=True)
    return StartFrom(path=str(folder))


def begin(source: StartFrom, parts: Any, state: dict[str, Any]) -> None:
    chosen = StartFrom.model_validate({"path": source.path, "parts": parts})
    start_from(chosen, state, 0, {})


def weights(state: dict[str, Any]) -> dict[str, Any]:
    return {name: each.clone() for name, each in state["model"].state_dict().items()}


def require_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, each in left.items():
        assert torch.equal(each, right[name]), name


def test_only_the_named_part_comes_from_a_folder_of_stock_torch(tmp_path: Path) -> None:
    """The optimizer is as the script made it: not even its state is."""
    seed(1)
    there = trained()
    source = stock(there, tmp_path / "ckpt")
    seed(2)
    here = training()
    begin(source, ["model"], here)
    require_equal(weights(here), weights(there))
    assert not here["optimizer"].state
    assert here["counter"].value == 0


def test_parts_may_have_other_names_there(tmp_path: Path) -> None:
    """Deeper ones, and none at all: a checkpoint of the bare model."""
    there = trained()
    nested = stock(there, tmp_path / "nested", prefix="app.model")
    bare = stock(there, tmp_path / "bare", top=True)
    for source, name in ((nested, "app.model"), (bare, "")):
        here = training()
        begin(source, {"model": name}, here)
        require_equal(weights(here), weights(there))


def test_the_optimizer_comes_along_if_it_is_named(tmp_path: Path) -> None:
    """Its averages and counts of steps, too."""
    there = trained()
    source = stock(there, tmp_path / "ckpt")
    here = training()
    begin(source, ["model", "optimizer"], here)
    theirs, ours = (get_optimizer_state_dict(each["model"], each["optimizer"]) for each in (there, here))
    for name, values in theirs["state"].items():
        require_equal(dict(values), dict(ours["state"][name]))


def other(kind: str) -> dict[str, Any]:
    state = training()
    if kind == "shape":
        state["model"][0] = nn.Linear(5, 4)
    if kind == "type":
        state["model"].to(torch.bfloat16)
    if kind == "more here":
        state["model"].append(nn.Linear(1, 1))
    if kind == "more there":
        state["model"] = state["model"][:3]
    state["optimizer"] = torch.optim.AdamW(state["model"].parameters())
    return state


@pytest.mark.parametrize("form", ["stock", "own"])
@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("shape", r"model\.0\.weight: .*\[4, 3\] of torch.float32, the state one \[4, 5\]"),
        ("type", r"model\.0\.weight: .* of torch.float32, the state one .* of torch.bfloat16"),
        ("more here", r"model\.4\.\w+: the (state|model) has it"),
        ("more there", r"model\.3\.\w+: .* has it, and the model does not"),
    ],
)
def test_what_does_not_fit_is_named(
    form: str, kind: str, named: str, make_agent: MakeAgent, tmp_path: Path
) -> None:
    """Shape, type, and names that only one side has; the same of both kinds of checkpoints."""
    source = stock(trained(), tmp_path / "ckpt")
    if form == "own":
        agent = make_agent()
        run(session_of(agent), training(), 3)
        source = StartFrom(path=str(publish(agent.shards, 3, tmp_path / "own")))
    with pytest.raises(CheckpointError, match=named):
        begin(source, ["model"], other(kind))


def test_a_lenient_part_takes_what_there_is(tmp_path: Path) -> None:
    """A model with a new head."""
    there = trained()
    source, here = stock(there, tmp_path / "ckpt"), other("more here")
    fresh = here["model"][4].weight.clone()
    begin(source, ["model"], {**here, "model": Part(here["model"], strict=False)})
    assert torch.equal(here["model"][0].weight, there["model"][0].weight)
    assert torch.equal(here["model"][4].weight, fresh)


def test_missing_parts_and_folders_are_named(tmp_path: Path) -> None:
    """A part that the script lacks, one that the source lacks, and a folder that is none."""
    source = stock(trained(), tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"'weights': .* has no such part \(it has counter, model"):
        begin(source, ["weights"], training())
    with pytest.raises(CheckpointError, match=r"policy\.0\.weight: .* does not \(it has model, optimizer\)"):
        begin(source, {"model": "policy"}, training())
    with pytest.raises(CheckpointError, match=r"it has no \.metadata"):
        begin(StartFrom(path=str(tmp_path)), ["model"], training())


def test_a_folder_of_ours_gives_single_parts(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Also a counter that lies in the tree alone; random states and all else stay as they are."""
    agent, there = make_agent(), training()
    run(session_of(agent), there, 3)
    folder = publish(agent.shards, 3, tmp_path / "own")
    seed(7)
    here = training()
    before = torch.get_rng_state()
    begin(StartFrom(path=str(folder)), ["model", "counter"], here)
    require_equal(weights(here), weights(there))
    assert here["counter"].value == 3
    assert not here["optimizer"].state
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(CheckpointError, match=r"has no part 'ema' \(it has counter, model, optimizer"):
        begin(StartFrom(path=str(folder)), {"model": "ema"}, training())


@pytest.mark.parametrize(("parts", "as_saved"), [(["model"], False), (["model", "optimizer"], True)])
def test_which_weights_are_trained_is_for_the_script_to_say(
    make_agent: MakeAgent, tmp_path: Path, parts: list[str], as_saved: bool
) -> None:
    """It freezes others than the source did; with the optimizer it goes on with the training of the source."""
    agent, there = make_agent(), training()
    there["model"][0].requires_grad_(False)
    run(session_of(agent), there, 2)
    folder = publish(agent.shards, 2, tmp_path / "own")
    here = training()
    here["model"][3].requires_grad_(False)
    begin(StartFrom(path=str(folder)), parts, here)
    require_equal(weights(here), weights(there))
    like = there if as_saved else {"model": training()["model"].requires_grad_(True)}
    if not as_saved:
        like["model"][3].requires_grad_(False)
    assert [each.requires_grad for each in here["model"].parameters()] == [
        each.requires_grad for each in like["model"].parameters()
    ]


def test_parts_of_a_folder_of_ours_are_known_by_its_names(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Also a counter, which is no item of its own: it lies in a tree alone."""
    agent = make_agent()
    run(session_of(agent), training(), 2)
    folder = publish(agent.shards, 2, tmp_path / "own")
    names = names_in((folder / ".metadata").read_bytes(), "it")
    assert parts_of(names) == ["counter", "model", "optimizer", "scheduler"]
    assert has_part(names, "counter")


def test_without_parts_the_whole_state_goes_on(make_agent: MakeAgent, tmp_path: Path) -> None:
    """As if the job had never had another name."""
    agent = make_agent()
    seed(1)
    whole = run(session_of(agent), training(), 6)
    seed(1)
    first = run(session_of(agent), training(), 3)
    folder = publish(agent.shards, 3, tmp_path / "own")
    ticket = tmp_path / "ticket"
    agent.epoch += 1
    ticket.write_text(json.dumps(asdict(Restored(3, "", start_from={"path": str(folder)}))))
    order = {wire.ENV_RESTORE: json.dumps({"step": 3, "ticket": str(ticket)})}
    seed(5)
    rest = run(Session(agent.environ(0, **order)), training(), 6)
    assert first + rest == whole


@pytest.mark.parametrize("stepped", [False, True])
def test_a_parameter_without_a_gradient_so_far_has_no_state_afterwards(tmp_path: Path, stepped: bool) -> None:
    """An expert that no token was routed to: its optimizer knows it, and has nothing of it; also after steps here."""

    def made() -> dict[str, Any]:
        model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}

    def step(state: dict[str, Any]) -> None:
        state["model"]["used"](torch.ones(1, 2)).sum().backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()

    there, here = made(), made()
    step(there)
    source = stock(there, tmp_path / "ckpt")
    if stepped:
        step(here)
    begin(source, ["model", "optimizer"], here)
    require_equal(weights(here), weights(there))
    for name, param in here["model"].named_parameters():
        held = here["optimizer"].state.get(param, {})
        assert bool(held) is name.startswith("used"), name
    step(there)
    step(here)
    require_equal(weights(here), weights(there))


def test_a_parameter_that_the_source_did_not_train_is_refused(tmp_path: Path) -> None:
    """Its optimizer was made of others: this one's state would be left as it is, without a message."""
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "more": nn.Linear(2, 2)})
    there = {"model": model, "optimizer": torch.optim.AdamW(model["used"].parameters(), lr=0.1)}
    source = stock(there, tmp_path / "ckpt")
    other = nn.ModuleDict({"used": nn.Linear(2, 2), "more": nn.Linear(2, 2)})
    here = {"model": other, "optimizer": torch.optim.AdamW(other.parameters(), lr=0.1)}
    with pytest.raises(CheckpointError, match=r"optimizer.state.more.* does not"):
        begin(source, ["model", "optimizer"], here)


def grouped(*names: str) -> dict[str, Any]:
    """A model whose optimizer has a group for each text: the parameters that end in it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [
        {"params": [each for own, each in model.named_parameters() if own.endswith(name)], "lr": 0.1 / at}
        for at, name in enumerate(names, 1)
    ]
    optimizer = torch.optim.AdamW(groups)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize(
    ("there", "here", "named"),
    [
        (("weight", "bias"), ("bias", "weight"), r"param_groups.0: .* '0.bias' in group 1, .* group 0"),
        (("weight", "bias"), ("",), r"param_groups.1: .* has it, .* does not"),
        (("",), ("weight", "bias"), r"param_groups.1.* does not"),
    ],
)
def test_parameters_get_the_options_of_their_own_group(
    there: tuple[str, ...], here: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """Groups have numbers in a checkpoint of stock torch: in another order biases would decay in place of weights."""
    source = stock(grouped(*there), tmp_path / "ckpt")
    begin(source, ["model", "optimizer"], grouped(*there))
    with pytest.raises(CheckpointError, match=named):
        begin(source, ["model", "optimizer"], grouped(*here))
