"""The rest of an epoch's data: an iterator over torch's loader that begins after the batches that were done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset


def by_index(loader: object) -> bool:
    """Return whether batches can be passed over without being read."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and not loader.persistent_workers
    )


@contextmanager
def beginning_after(loader: DataLoader[Any], batches: int) -> Iterator[Rest]:
    """Have an iterator that is made meanwhile leave out the first batches."""
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    whole = getattr(loader, name)
    rest = Rest(whole, batches)
    # A loader refuses to have it set.
    loader.__dict__[name] = rest
    try:
        yield rest
    finally:
        loader.__dict__[name] = whole


class Rest:
    """A sampler without its first items, and the one iterator over it."""

    def __init__(self, whole: Any, without: int) -> None:
        self._whole, self._without = whole, without

    def __iter__(self) -> Iterator[Any]:
        self._items = iter(self._whole)
        return self

    def __next__(self) -> Any:
        self.begin()
        return next(self._items)

    def begin(self) -> None:
        """Draw the order of all items: after the loader's own draw, as ever, and before other random state is set."""
        while self._without:
            next(self._items, None)
            self._without -= 1

    def __len__(self) -> int:
        return len(self._whole)
