"""Which samples a rank takes, at any world size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import distributed as dist
from torch.utils.data import Sampler

from holdfast.data.order import shuffled
from holdfast.errors import SettingsError


class ElasticSampler(Sampler[list[int]]):
    """Batches of one rank out of one stream that all ranks share; for ``batch_sampler`` of a loader.

    The stream is the samples in a new order each time through, without end. A step takes the next
    ``batch_size * world`` of it, each rank its part. The position is how many all ranks have taken together: it
    does not depend on ranks, so training goes on from it at any world size and batch size, and no sample is
    skipped or repeated: within one pass each comes exactly once.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        """Make a sampler for a data set of ``size`` samples.

        Args:
            size: samples in the data set.
            batch_size: samples per rank and step.
            rank: data-parallel rank; default that of the process group. Ranks of one tensor-parallel or pipeline
                group must give the same.
            world: number of data-parallel ranks.
            seed: of the order.
            shuffle: False: in the order of the data set, every time.

        Raises:
            SettingsError: an argument is out of range.
        """
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        self.world = world if world is not None else dist.get_world_size() if grouped else 1
        self.size, self.batch_size, self.seed, self.shuffle = size, batch_size, seed, shuffle
        self.taken = 0
        """Samples of the stream that all ranks together have taken before this sampler's next iterator."""
        if min(size, batch_size, self.world) < 1 or not 0 <= self.rank < self.world:
            raise SettingsError(
                f"ElasticSampler: size = {size}, batch_size = {batch_size}, rank = {self.rank}, world = {self.world}; "
                "expected a rank below the world size and all others at least 1"
            )

    @property
    def per_step(self) -> int:
        """Samples that one step of all ranks takes."""
        return self.batch_size * self.world

    def samples(self, start: int, stop: int) -> list[int]:
        """Return samples ``start`` to ``stop`` of the stream, which runs through the data set again and again."""
        turns, places = np.divmod(np.arange(start, stop, dtype=np.int64), self.size)
        if not self.shuffle:
            return [int(place) for place in places]
        found = np.empty_like(places)
        for turn in np.unique(turns):
            now = turns == turn
            found[now] = shuffled(places[now], self.size, self.seed * 1_000_003 + int(turn))
        return [int(sample) for sample in found]

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches from the position on; endless."""
        return _Batches(self)

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the arguments that must not change for it to mean the same.

        The seed of a sampler that does not shuffle is kept as -1 - seed: a key more would not be in older checkpoints.
        """
        return {"taken": self.taken, "size": self.size, "seed": self.seed if self.shuffle else -1 - self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position.

        Raises:
            SettingsError: it is one of other data or of another order.
        """
        size, seed = state["size"], state["seed"]
        if self.shuffle and seed == -1 - self.seed:
            raise SettingsError(
                "ElasticSampler: shuffle is True, the restored position is one of samples in the data set's order: "
                "samples would be skipped or repeated"
            )
        if not self.shuffle and seed == -1 - self.seed:
            seed = self.seed  # older releases kept the seed alone
        for name, restored in (("size", size), ("seed", seed)):
            if restored != getattr(self, name):
                raise SettingsError(
                    f"ElasticSampler: {name} is {getattr(self, name)}, the restored position has {restored}: "
                    "samples would be skipped or repeated"
                )
        self.taken = int(state["taken"])


class _Batches(Iterator[list[int]]):
    """An iterator that torchdata's StatefulDataLoader can save and set, too."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._taken = sampler.taken

    def __next__(self) -> list[int]:
        sampler = self._sampler
        start = self._taken + sampler.rank * sampler.batch_size
        self._taken += sampler.per_step
        return sampler.samples(start, start + sampler.batch_size)

    def state_dict(self) -> dict[str, int]:
        return {"taken": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._taken = state["taken"]
