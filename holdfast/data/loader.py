"""A loader whose position is that of the last batch *used*, however far its workers have read ahead."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.data.sampler import ElasticSampler


class ElasticLoader:
    """A ``DataLoader`` over a map-style data set, to be put into the state given to the Session.

    Iterating goes on from the position, for ever. Its whole state is the position of the shared stream: equal on
    all ranks, so it is saved once, and it may be loaded with another world size, batch size or number of workers.

    Random augmentation in ``dataset[i]`` is seeded by the sample's place in the stream: it is the same whichever
    worker, rank or restart loads it, and the random state of training is left alone.
    """

    def __init__(self, dataset: Dataset[Any], sampler: ElasticSampler, **options: Any) -> None:
        """Load batches of ``sampler``.

        Args:
            dataset: map-style.
            sampler: chooses the samples.
            options: for ``torch.utils.data.DataLoader``: ``num_workers``, ``collate_fn``, ``pin_memory``, ...
        """
        self.sampler = sampler
        # With a generator of its own the loader draws nothing from that of training when it is made again.
        self._loader = DataLoader(
            _Seeded(dataset, sampler.seed),
            batch_sampler=_WithPlaces(sampler),
            generator=torch.Generator().manual_seed(sampler.seed),
            **options,
        )

    @property
    def epoch(self) -> float:
        """Number of passes through the data set."""
        return self.sampler.taken / self.sampler.size

    def __iter__(self) -> Iterator[Any]:
        """Yield batches; each counts as used from the moment it is handed out."""
        for batch in self._loader:
            self.sampler.taken += self.sampler.per_step
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position, with the next iterator."""
        self.sampler.load_state_dict(state)


class _WithPlaces:
    """Batches of (sample, place in the stream)."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        sampler = self._sampler
        start = sampler.taken + sampler.rank * sampler.batch_size
        for batch in sampler:
            yield [(sample, start + number) for number, sample in enumerate(batch)]
            start += sampler.per_step


class _Seeded(Dataset[Any]):
    """A data set whose randomness follows from a sample's place in the stream."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, at: tuple[int, int]) -> Any:
        sample, place = at
        held = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            seed = (self._seed * 1_000_003 + place) % 2**63
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # Only the CPU's: seeding all devices would start CUDA in workers.
            torch.default_generator.manual_seed(seed)
            return self._dataset[sample]
        finally:
            random.setstate(held[0])
            np.random.set_state(held[1])
            torch.set_rng_state(held[2])
