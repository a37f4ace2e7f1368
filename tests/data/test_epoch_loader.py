"""A loop over epochs that is broken off after any batch goes on as one that was not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.data import EpochLoader
from holdfast.errors import ScriptRefusedError, SettingsError
from holdfast.session import rng

pytestmark = pytest.mark.torch
EPOCHS, SAMPLES = 3, 10


class Noisy(Dataset[torch.Tensor]):
    """Samples with a random number each, drawn where they are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        self.read.append(number)
        return torch.tensor(float(number)) + torch.rand(()) / 2


class Stream(IterableDataset[int]):
    """Samples in a random order, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES).tolist())


def generated() -> torch.Generator:
    """Return a generator of a loader's own."""
    return torch.Generator().manual_seed(5)


def replaced() -> DataLoader[Any]:
    """Return a loader of samples that are drawn with replacement."""
    data = Noisy()
    return DataLoader(data, batch_size=3, sampler=RandomSampler(data, replacement=True, num_samples=SAMPLES))


def distributed() -> DataLoader[Any]:
    """Return the loader of one rank of two, whose order follows from the epoch."""
    data = Noisy()
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=1, seed=3))


ORDERED = range(SAMPLES)
"""Read by worker processes, whose random numbers are of no state."""
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Noisy(), batch_size=3),
    "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
    "with a generator": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, generator=generated()),
    "with replacement": replaced,
    "of one rank": distributed,
    "one by one": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True),
    "a stream": lambda: DataLoader(Stream(), batch_size=3),
    "workers": lambda: DataLoader(ORDERED, batch_size=3, shuffle=True, num_workers=2),  # type: ignore[arg-type]
    "workers that stay": lambda: DataLoader(
        ORDERED,  # type: ignore[arg-type]
        batch_size=3,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
    ),
}


class Training:
    """A script with an evaluation, which draws random numbers, and a schedule by epochs."""

    def __init__(self, loader: DataLoader[Any], leaves_at: int | None = None) -> None:
        self.loader, self.leaves_at = EpochLoader(loader), leaves_at
        self.did: list[Any] = []
        self.saved: list[tuple[int, Any, Any]] = []

    def run(self) -> None:
        for epoch in self.loader.epochs(range(1, EPOCHS + 1)):
            if isinstance(self.loader.sampler, DistributedSampler):
                self.loader.sampler.set_epoch(epoch)
            for number, batch in enumerate(self.loader, self.loader.batch):
                self.did.append((epoch, number, batch.tolist(), torch.rand(()).item()))
                if number + 1 == self.leaves_at:
                    break
                self._save()
            if self.leaves_at:
                self._save()
            self.did.append((epoch, "evaluated", torch.rand(()).item()))

    def _save(self) -> None:
        self.saved.append((len(self.did), copy.deepcopy(self.loader.state_dict()), rng.capture()))


@pytest.mark.parametrize("kind", LOADERS)
def test_it_goes_on_after_any_batch(kind: str) -> None:
    """Batches, the random numbers of training, and what an epoch ends with: none is left out, none comes twice."""
    torch.manual_seed(1)
    whole = Training(LOADERS[kind]())
    whole.run()
    assert whole.loader.taken == len(whole.saved)
    for done, state, random in whole.saved[:: 4 if "workers" in kind else 1]:
        torch.manual_seed(7)
        torch.rand(3)
        again = Training(LOADERS[kind]())
        rng.apply(random)
        again.loader.load_state_dict(state)
        again.run()
        assert whole.did[:done] + again.did == whole.did, f"restored after {done} of {len(whole.did)}"


@pytest.mark.parametrize("kind", LOADERS)
def test_an_epoch_that_was_left_is_over(kind: str) -> None:
    """A save between ``break`` and the next epoch: no batch of that epoch is left to train on."""
    torch.manual_seed(1)
    whole = Training(LOADERS[kind](), leaves_at=2)
    whole.run()
    assert whole.loader.taken == 2 * EPOCHS
    for done, state, random in whole.saved:
        torch.manual_seed(7)
        again = Training(LOADERS[kind](), leaves_at=2)
        rng.apply(random)
        again.loader.load_state_dict(state)
        again.run()
        assert whole.did[:done] + again.did == whole.did, f"restored after {done} of {len(whole.did)}"


def test_an_iterator_of_an_epoch_before_ends_none_later() -> None:
    """One that the script still holds is closed when the next one takes its name."""
    loader = EpochLoader(LOADERS["in order"]())
    seen = []
    for _ in loader.epochs(range(2)):
        batches = iter(loader)
        next(batches)
        seen.append(loader.state_dict()["over"])
    assert seen == [False, False]
    again = EpochLoader(LOADERS["in order"]())
    again.load_state_dict(loader.state_dict() | {"batch": 1, "epoch": 1})
    del batches
    assert next(again.epochs(range(2))) == 1
    assert len(list(again)) == 3


def test_what_was_done_is_not_read_again() -> None:
    """Reading may be what takes the time."""
    data = Noisy()
    first = Training(DataLoader(data, batch_size=3, shuffle=True))
    first.run()
    _, state, _ = first.saved[2]
    data.read.clear()
    again = EpochLoader(DataLoader(data, batch_size=3, shuffle=True))
    again.load_state_dict(state)
    assert next(again.epochs(range(EPOCHS))) == 0
    assert len(list(again)) == 1
    assert len(data.read) == 1


def test_the_wrapped_loader_is_seen_through() -> None:
    """Scripts ask it for its data set, its sampler and its length."""
    inner = LOADERS["of one rank"]()
    loader = EpochLoader(inner)
    assert (loader.dataset, loader.sampler, loader.batch_size, len(loader)) == (
        inner.dataset,
        inner.sampler,
        2,
        3,
    )
    with pytest.raises(AttributeError):
        _ = loader.nothing
    assert copy.copy(loader).loader is inner


def test_a_second_iterator_of_an_epoch_is_refused() -> None:
    """Which of the two is the epoch's place could not be known: on the first day, not at the first restart."""
    loader = EpochLoader(LOADERS["shuffled"]())
    next(iter(loader))
    with pytest.raises(ScriptRefusedError, match=r"loader\.epochs\(range"):
        iter(loader)


def test_another_number_of_ranks_is_refused() -> None:
    """Its batches of an epoch are others."""
    loader = EpochLoader(LOADERS["of one rank"]())
    with pytest.raises(ScriptRefusedError, match="saved by 2 ranks, and there are 1 now"):
        loader.load_state_dict(loader.state_dict() | {"world_size": 2})


def test_a_loader_with_a_state_of_its_own_is_refused() -> None:
    """Two would be the place."""
    with pytest.raises(SettingsError, match="StatefulDataLoader has a state of its own"):
        EpochLoader(StatefulDataLoader(Noisy()))
