"""Work on very many files by a few threads: what waits for a thread is a batch of files, not each one by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_BATCH = 64
_BATCHES = 8
"""Of each thread, at least: one that has a slow batch holds the others up for little."""


def each_of(work: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Yield what ``work`` makes of each item, in their order; its first error is raised, and the rest is left."""
    size = max(1, min(_BATCH, len(items) // (_BATCHES * threads)))
    batches = [items[at : at + size] for at in range(0, len(items), size)]
    with ThreadPoolExecutor(threads) as pool:
        for made in pool.map(lambda batch: [work(item) for item in batch], batches):
            yield from made
