"""Saves of a state that is mostly as it was: what is kept from one to the next never hides a change."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.session.restore import restore
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.plan import make_plan
from holdfast.storage.checkpoints.save.prepared import SteadyTensors
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter


class Net(nn.Module):
    """Parameters, buffers of both kinds, one that is None, and a layer that can be renamed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("later", None)


class Job:
    """A state that is saved again and again, by one tree and one writer for as long as its plan fits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.net = Net()
        self.optimizer = torch.optim.AdamW([{"params": list(self.net.first.parameters()), "lr": 0.1}])
        self.state: dict[str, Any] = {"net": self.net, "optimizer": self.optimizer}
        self.tree = StateTree(self.state)
        self.writer: ShardWriter | None = None
        self.saves = 0
        self.planned = 0

    def step(self) -> None:
        for each in self.net.parameters():
            each.grad = torch.ones_like(each)
        self.optimizer.step()

    def save(self) -> Path:
        self.saves += 1
        fixed, loose = self.tree.split()
        items = {**fixed, **loose}
        contents = self.writer.collect(loose, fixed) if self.writer else None
        if contents is None:
            self.planned += 1
            private, paths = self.tree.private, self.tree.paths
            layout = make_plan(items, self.folder, 0, self.planned, private=private, paths=paths).layout
            self.writer = ShardWriter(layout, Owner("job", 0, 0, 1), self.folder)
            contents = self.writer.collect(loose, fixed)
        assert self.writer is not None
        assert contents is not None
        save = self.writer.start(contents, self.saves, SteadyTensors(self.tree.updated()), number=self.saves)
        assert save.run()
        return save.path

    def require_restorable(self) -> None:
        """Require that the last save is the state as it is, by a restore into an empty copy of it."""
        path = self.save()
        like = copy.deepcopy(self.state)
        with torch.no_grad():
            for tensor in (*like["net"].parameters(), *like["net"].buffers()):
                tensor.fill_(-7)
            for values in like["optimizer"].state.values():
                for each in values.values():
                    each.fill_(-7)
        tree = StateTree(like)
        restore(tree, path, 0)
        require_alike(tree.flat(), StateTree(self.state).flat())


def require_alike(found: Any, wanted: Any, at: str = "") -> None:
    """Same names, values, shapes and types."""
    assert type(found) is type(wanted), at
    if isinstance(wanted, Tensor):
        assert (found.dtype, found.shape, found.requires_grad) == (
            wanted.dtype,
            wanted.shape,
            wanted.requires_grad,
        )
        assert torch.equal(found, wanted), at
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        for key, each in wanted.items():
            require_alike(found[key], each, f"{at}.{key}")
    else:
        assert found == wanted, at


def _add_to_mean(job: Job) -> None:
    job.net.mean += 1


def _grow_mean(job: Job) -> None:
    job.net.mean = torch.arange(job.net.mean.numel() + 1.0)


def _new_mean(job: Job) -> None:
    job.net.mean = torch.full_like(job.net.mean, 3.0)


def _wide_mean(job: Job) -> None:
    job.net.mean = job.net.mean.double()


def _take_later(job: Job) -> None:
    job.net.later = torch.full((2,), 5.0) if job.net.later is None else None


def _new_data(job: Job) -> None:
    job.net.first.weight.data = torch.randn(2, 2)


def _other_data_at_the_same_place(job: Job) -> None:
    with torch.no_grad():
        job.net.first.weight.mul_(2)


def _turn(job: Job) -> None:
    job.net.first.weight.data = job.net.first.weight.data.t()


def _freeze(job: Job) -> None:
    job.net.second.weight.requires_grad_(not job.net.second.weight.requires_grad)


def _train_second(job: Job) -> None:
    params = {id(each) for group in job.optimizer.param_groups for each in group["params"]}
    if id(job.net.second.weight) not in params:
        job.optimizer.add_param_group({"params": [job.net.second.weight], "lr": 0.3})


def _join_group(job: Job) -> None:
    params = {id(each) for group in job.optimizer.param_groups for each in group["params"]}
    if id(job.net.second.weight) not in params:
        job.optimizer.param_groups[0]["params"].append(job.net.second.weight)


def _other_rate(job: Job) -> None:
    job.optimizer.param_groups[0]["lr"] *= 0.5


def _new_option(job: Job) -> None:
    job.optimizer.param_groups[0]["note"] = [job.saves]


def _changed_option(job: Job) -> None:
    job.optimizer.param_groups[0].setdefault("note", []).append(7)


def _new_moments(job: Job) -> None:
    for values in job.optimizer.state.values():
        values["exp_avg"] = torch.randn(2, 2) if values["exp_avg"].dim() == 2 else torch.randn(2)


def _other_moments(job: Job) -> None:
    for values in job.optimizer.state.values():
        values["history"] = torch.full((job.saves % 3 + 1,), float(job.saves))


def _count_in_state(job: Job) -> None:
    for values in job.optimizer.state.values():
        if "history" in values:
            values["history"] += 1


def _lose_state(job: Job) -> None:
    job.optimizer.state.clear()


CHANGES: list[Callable[[Job], None]] = [
    Job.step,
    _add_to_mean,
    _grow_mean,
    _new_mean,
    _wide_mean,
    _take_later,
    _new_data,
    _other_data_at_the_same_place,
    _turn,
    _freeze,
    _train_second,
    _join_group,
    _other_rate,
    _new_option,
    _changed_option,
    _new_moments,
    _other_moments,
    _count_in_state,
    _lose_state,
]


@given(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=8))
@settings(max_examples=120, deadline=None)
def test_no_change_between_two_saves_is_missed(changes: list[Callable[[Job], None]]) -> None:
    """After each of them the newest save restores to the state as it is."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        job.step()
        job.require_restorable()
        for change in changes:
            change(job)
            job.require_restorable()


def test_a_tensor_that_once_changed_its_shape_is_saved_as_it_is_each_time() -> None:
    """Its elements lie in the tree from then on: a later change in place must not be missed."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        job.step()
        for change in (
            _grow_mean,
            _add_to_mean,
            _add_to_mean,
            _other_moments,
            _count_in_state,
            _count_in_state,
        ):
            change(job)
            job.require_restorable()


def test_layers_that_change_places_change_names() -> None:
    """The same tensors under other names."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        job.require_restorable()
        job.net.first, job.net.second = job.net.second, job.net.first
        job.optimizer.param_groups[0]["params"] = list(job.net.first.parameters())
        job.require_restorable()


def test_while_nothing_but_elements_changes_nothing_is_looked_up_again() -> None:
    """The trees, and how each tensor is copied, are those of the save before."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder))
        job.step()
        job.save(), job.save()
        assert job.writer is not None
        trees = {name: id(each) for name, each in job.tree.flat().items() if isinstance(each, dict)}
        routes = [slot.prepared for slot in job.writer._slots.values()]
        for _ in range(4):
            job.step()
            job.save()
        again = {name: id(each) for name, each in job.tree.flat().items() if isinstance(each, dict)}
        parts = {name for name in trees if name.endswith("/parts")}
        assert {name: trees[name] for name in trees.keys() - parts} == {
            name: again[name] for name in again.keys() - parts
        }
        assert all(
            a is b for a, b in zip(routes, (s.prepared for s in job.writer._slots.values()), strict=True)
        )
        assert job.planned == 1
