"""The quick check of tensors finds each change of their form or place, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.storage.checkpoints.save.glance import Glance

pytestmark = pytest.mark.torch


def tensors() -> list[Tensor]:
    return [torch.zeros(4, 6), Parameter(torch.ones(3)), torch.tensor(7), torch.zeros(2, 2)]


def _data(form: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], None]:
    def change(held: list[Tensor]) -> None:
        held[0].data = form(held[0])

    return change


def _replace(held: list[Tensor]) -> None:
    held[0] = torch.zeros(4, 6)


def _frozen(held: list[Tensor]) -> None:
    held[0].requires_grad_()


CHANGES = {
    "another object": _replace,
    "elsewhere": _data(torch.clone),
    "another shape": _data(lambda each: each.view(6, 4)),
    "other strides": _data(lambda each: torch.empty_strided((4, 6), (1, 4))),
    "another type": _data(lambda each: each.to(torch.float64)),
    "needs a gradient": _frozen,
    "one dimension more, at its place": lambda held: held[0].unsqueeze_(0),
    "transposed at its place": lambda held: held[0].t_(),
    "longer": lambda held: held[0].resize_(40, 60),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("quiet", [False, True], ids=["", "no_grad"])
def test_each_change_is_found_once(change: Callable[[list[Tensor]], None], quiet: bool) -> None:
    """Also where it is looked from code that computes no gradients."""
    held = tensors()
    glance = Glance(held)
    with torch.set_grad_enabled(not quiet):
        assert glance.changed(held) == []
        change(held)
        assert glance.changed(held) == [0]
        assert glance.changed(held) == []


def test_other_elements_are_no_change() -> None:
    """Nor is a tensor that stands in two places, or a look from within autocast."""
    held = tensors()
    held.append(held[0])
    glance = Glance(held)
    held[0].fill_(3)
    assert glance.same(held)
    with torch.autocast("cpu", torch.bfloat16):
        assert glance.same(held)
    assert glance.same(held)
    held[0].data = torch.ones(4, 6)
    assert glance.changed(held) == [0, 4]


@pytest.mark.parametrize("odd", [torch.eye(3).to_sparse(), "no tensor"], ids=["sparse", "no tensor"])
def test_what_lies_nowhere_counts_as_changed(odd: Any) -> None:
    """Each time; the others do not."""
    held = [*tensors(), odd]
    glance = Glance(held)
    assert glance.changed(held) == [4]
    assert glance.changed(held) == [4]


@pytest.fixture
def sharded() -> Iterator[DTensor]:
    """A part of a tensor that two ranks share."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        yield distribute_tensor(torch.zeros(4, 6), mesh, [Shard(0)], src_data_rank=None)
    finally:
        dist.destroy_process_group()


def _other_part(each: DTensor) -> None:
    each._local_tensor = torch.zeros(2, 6)


def _elsewhere(each: DTensor) -> None:
    each._local_tensor.data = torch.zeros(2, 6)


def _split_otherwise(each: DTensor) -> None:
    mesh = each.device_mesh
    each._spec = distribute_tensor(torch.zeros(4, 6), mesh, [Shard(1)], src_data_rank=None)._spec


@pytest.mark.parametrize(
    "change", [_other_part, _elsewhere, _split_otherwise, lambda each: each.requires_grad_()]
)
def test_a_part_that_changed_is_found(change: Callable[[DTensor], None], sharded: DTensor) -> None:
    """Where it lies, and how it is split."""
    held = [*tensors(), sharded]
    glance = Glance(held)
    sharded.to_local().fill_(2)
    assert glance.same(held)
    change(sharded)
    assert glance.changed(held) == [4]
    assert glance.same(held)
