"""A :class:`~holdfast.data.Dataset` for torch's loaders, whose worker processes share the batches of a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from holdfast.data.dataset import Dataset
from holdfast.data.rows import Rows


class Feed(IterableDataset[Rows]):
    """Batches for ``StatefulDataLoader(Feed(dataset), batch_size=None, num_workers=...)``.

    Worker ``w`` of ``n`` makes the batches ``w``, ``w + n``, ... of its rank; the loader hands them out in order. The
    loader's state holds each worker's place, and is loaded at the same number of ranks and workers. With
    :meth:`at`, a position counted by the script holds at any.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Feed the batches of ``dataset`` from its position on. Lists its files, together with all ranks."""
        if dataset.follows:
            raise ValueError(
                "Feed: a followed source needs all ranks to agree, which workers cannot: iterate Dataset"
            )
        dataset.prepare()
        dataset.settle()
        self.dataset = dataset
        self._next: int | None = None

    def at(self, taken: int) -> Feed:
        """Go on after ``taken`` samples of all ranks, with the next iterator."""
        self.dataset.taken = taken
        self._next = None
        return self

    def __iter__(self) -> Iterator[Rows]:
        """Yield this worker's batches."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        data = self.dataset
        at = data.taken + number * data.batch if self._next is None else self._next
        while True:
            data.taken = at
            self._next = at + workers * data.batch
            try:
                rows = next(data)
            except StopIteration:
                self._next = at
                return
            at = self._next
            yield rows

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this worker."""
        return {"next": self._next, **self.dataset.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place."""
        self.dataset.load_state_dict(state)
        self._next = state["next"]
