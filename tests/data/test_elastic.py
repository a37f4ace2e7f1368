"""No sample is skipped or repeated, whatever restarts and resizes come in between."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.data import ElasticLoader, ElasticSampler
from holdfast.data.order import shuffled
from holdfast.errors import SettingsError

pytestmark = pytest.mark.torch


@settings(max_examples=200)
@given(st.integers(1, 3000), st.integers(0, 2**40))
def test_an_order_is_a_permutation(size: int, seed: int) -> None:
    """Every sample comes exactly once in a pass."""
    assert sorted(shuffled(np.arange(size), size, seed).tolist()) == list(range(size))


def test_orders_are_shuffled() -> None:
    """Neighbours part, and another seed gives another order; any place can be asked for alone."""
    one, two = (shuffled(np.arange(10_000), 10_000, seed) for seed in (1, 2))
    assert (np.abs(np.diff(one)) < 100).mean() < 0.05
    assert (one == two).mean() < 0.01
    assert shuffled(np.array([77]), 10_000, 1)[0] == one[77]
    assert abs(np.corrcoef(np.arange(10_000), one)[0, 1]) < 0.05


PHASES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=5)


@settings(max_examples=200)
@given(st.integers(1, 40), st.booleans(), PHASES)
def test_restarts_and_resizes_skip_and_repeat_nothing(
    size: int, shuffle: bool, phases: list[tuple[int, int, int]]
) -> None:
    """Whatever world and batch sizes follow one another, the stream is that of one rank that never stopped."""
    state: dict[str, int] | None = None
    taken: list[int] = []
    for world, batch, steps in phases:
        samplers = [
            ElasticSampler(size, batch, rank=rank, world=world, seed=5, shuffle=shuffle)
            for rank in range(world)
        ]
        for each in samplers:
            if state:
                each.load_state_dict(state)
        iterators = [iter(each) for each in samplers]
        for _ in range(steps):
            for each, iterator in zip(samplers, iterators, strict=True):
                taken += next(iterator)
                each.taken += each.per_step
        state = samplers[0].state_dict()
        assert all(each.state_dict() == state for each in samplers)
    whole = ElasticSampler(size, 1, rank=0, world=1, seed=5, shuffle=shuffle)
    assert taken == whole.samples(0, len(taken))
    for turn in range(len(taken) // size):
        assert sorted(taken[turn * size : (turn + 1) * size]) == list(range(size))


class Noisy(Dataset[Any]):
    """Samples with random augmentation of all three kinds."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()])


def batches(
    state: dict[str, int] | None, workers: int, world: int, steps: int
) -> tuple[list[Any], dict[str, int]]:
    """Samples of all ranks in so many steps, in the stream's order, and the position then."""
    loaders = [
        ElasticLoader(Noisy(), ElasticSampler(23, 12 // world, rank=rank, world=world), num_workers=workers)
        for rank in range(world)
    ]
    for each in loaders:
        if state:
            each.load_state_dict(state)
    parts = [list(islice(each, steps)) for each in loaders]
    return [torch.cat(step) for step in zip(*parts, strict=True)], loaders[0].state_dict()


def test_a_loader_goes_on_exactly_at_another_size() -> None:
    """Stopped after three steps and resized: samples and their augmentation are those of an unbroken run."""
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate()
    whole, _ = batches(None, 0, 2, 7)
    first, state = batches(None, 2, 2, 3)  # workers have read ahead when it stops
    rest, _ = batches(state, 1, 3, 4)
    assert state == {"taken": 36, "size": 23, "seed": 0}
    assert torch.equal(torch.cat(whole), torch.cat([*first, *rest]))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_sampler_works_in_torchdatas_loader() -> None:
    """StatefulDataLoader saves and sets the sampler's iterator by itself."""
    loader = StatefulDataLoader(
        list(range(50)), batch_sampler=ElasticSampler(50, 4, rank=1, world=3), num_workers=2
    )
    iterator = iter(loader)
    first = [next(iterator).tolist() for _ in range(3)]
    state = loader.state_dict()
    rest = [next(iterator).tolist() for _ in range(4)]
    again = StatefulDataLoader(
        list(range(50)), batch_sampler=ElasticSampler(50, 4, rank=1, world=3), num_workers=2
    )
    again.load_state_dict(state)
    assert [batch.tolist() for batch in islice(again, 4)] == rest
    sampler = ElasticSampler(50, 4, rank=1, world=3)
    assert first + rest == list(islice(sampler, 7))


def test_a_position_of_other_data_is_refused() -> None:
    """Its meaning would change."""
    sampler = ElasticSampler(10, 2, rank=0, world=1)
    with pytest.raises(SettingsError, match="size is 10, the restored position has 11"):
        sampler.load_state_dict({"taken": 4, "size": 11, "seed": 0})
    with pytest.raises(SettingsError, match="rank = 2, world = 2"):
        ElasticSampler(10, 2, rank=2, world=2)


def test_a_position_of_another_order_is_refused() -> None:
    """Shuffled samples are others than those in the data set's order; positions of older releases go on."""
    plain = ElasticSampler(10, 2, rank=0, world=1, seed=5, shuffle=False)
    plain.taken = 4
    with pytest.raises(SettingsError, match="shuffle is True"):
        ElasticSampler(10, 2, rank=0, world=1, seed=5).load_state_dict(plain.state_dict())
    with pytest.raises(SettingsError, match="seed is 6"):
        ElasticSampler(10, 2, rank=0, world=1, seed=6, shuffle=False).load_state_dict(plain.state_dict())
    for state in (plain.state_dict(), {"taken": 4, "size": 10, "seed": 5}):
        again = ElasticSampler(10, 2, rank=0, world=1, seed=5, shuffle=False)
        again.load_state_dict(state)
        assert again.taken == 4
