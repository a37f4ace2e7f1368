"""Loading into live tensors: the short way where copying is all there is to do, torch's own where it is not."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.session import modules, optimizers, rehearsal, rng
from holdfast.session.restore import restore
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter


class Counting(nn.Linear):
    """Does something of its own when it is loaded."""

    loads = 0

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.loads += 1
        super()._load_from_state_dict(*args, **kwargs)


def trained(layer: nn.Module, lr: float = 0.1) -> dict[str, Any]:
    """A module and its optimizer after a step."""
    optimizer = torch.optim.AdamW(layer.parameters(), lr=lr)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": layer, "optimizer": optimizer}


def load_into(target: dict[str, Any], source: dict[str, Any]) -> StateTree:
    """As a restore does: from the very file that a save of ``source`` wrote."""
    tree, saved = StateTree(target), StateTree(source)
    with tempfile.TemporaryDirectory() as folder:
        items = saved.flat()
        layout = make_plan(items, Path(folder), 0, 0, private=saved.private, paths=saved.paths).layout
        writer = ShardWriter(layout, Owner("job", 0, 0, 1), Path(folder))
        contents = writer.collect(items)
        assert contents is not None
        restore(tree, writer.save(contents, 1), 0)
    return tree


@pytest.mark.parametrize("short", [True, False])
def test_both_ways_load_the_same(short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, moments, step and options are the saved ones; training goes on alike."""
    if not short:
        monkeypatch.setattr(modules, "loads_plainly", lambda _: False)
        monkeypatch.setattr(optimizers, "updates_plainly", lambda _: False)
    source, target = trained(nn.Linear(2, 2), lr=0.5), trained(nn.Linear(2, 2))
    tree = load_into(target, source)
    assert target["optimizer"].param_groups[0]["lr"] == 0.5
    flat, saved = tree.flat(), StateTree(source).flat()
    assert flat.keys() == saved.keys()
    for name, value in saved.items():
        assert torch.equal(flat[name], value) if isinstance(value, torch.Tensor) else flat[name] == value, (
            name
        )
    for each in (source, target):
        each["optimizer"].zero_grad()
        each["model"](torch.ones(1, 2)).sum().backward()
        each["optimizer"].step()
    assert torch.equal(source["model"].weight, target["model"].weight)


def test_the_short_way_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's functions are not called: bytes go straight into the live parameters."""
    monkeypatch.setattr(modules, "set_model_state_dict", None)
    target = trained(nn.Linear(2, 2))
    before = target["model"].weight.data_ptr()
    tree = load_into(target, trained(nn.Linear(2, 2)))
    assert tree.flat()["model.weight"].data_ptr() == target["model"].weight.data_ptr() == before


def test_a_module_that_loads_in_its_own_way_does() -> None:
    """An override and a hook are called."""
    module = Counting(2, 2)
    load_into(trained(module), trained(Counting(2, 2)))
    assert module.loads == 1
    called: list[str] = []
    hooked = nn.Linear(2, 2)
    hooked.register_load_state_dict_post_hook(lambda *_: called.append("loaded"))
    load_into(trained(hooked), trained(nn.Linear(2, 2)))
    assert called == ["loaded"]


class Late(nn.Linear):
    """Has a buffer that is None before the first step, or after it."""

    def __init__(self, late: torch.Tensor | None) -> None:
        super().__init__(2, 2)
        self.register_buffer("late", late)


@pytest.mark.parametrize(("saved", "fresh"), [(torch.ones(3), None), (None, torch.ones(3))])
def test_a_layer_under_two_names_has_the_buffer_that_it_had(
    saved: torch.Tensor | None, fresh: torch.Tensor | None
) -> None:
    """It was made, or became None, under both."""
    there, here = Late(saved), Late(fresh)
    load_into(trained(nn.Sequential(here, here)), trained(nn.Sequential(there, there)))
    if saved is None:
        assert here.late is None
    else:
        assert torch.equal(here.late, saved)


def test_an_optimizer_with_a_hook_is_notified() -> None:
    """Its hook sees what is loaded."""
    target, called = trained(nn.Linear(2, 2)), []
    target["optimizer"].register_load_state_dict_post_hook(lambda _: called.append("loaded"))
    load_into(target, trained(nn.Linear(2, 2)))
    assert called


def test_a_rehearsal_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither other random numbers, nor files, nor threads."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, threads = rng.capture(), {*threading.enumerate()}
    rehearsal.rehearse()
    after = rng.capture()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]
    assert threads.issuperset(threading.enumerate())  # one of a test before may have ended
    assert list(tmp_path.iterdir()) == []
