"""Ranks that read one data set, and what each of them got."""

from __future__ import annotations

from typing import Any

from holdfast import data
from tests.data.files import ids

FORMATS = ("parquet", "arrow", "jsonl", "txt")


class Ranks:
    """Data sets of several ranks in one process; each lists for itself, and finds the same."""

    def __init__(self, source: Any, count: int, state: Any = None, **options: Any) -> None:
        given = {"batch": 12, "lanes": 4, "seed": 3, "poll_s": 0.01, "threads": 1, **options}
        self.each = [data.Dataset(source, rank=rank, ranks=count, **given) for rank in range(count)]
        for one in self.each:
            if state is not None:
                one.load_state_dict(state)

    def step(self) -> list[int]:
        return [sample for one in self.each for sample in ids(next(one, []))]

    @property
    def state(self) -> dict[str, Any]:
        found = [one.state_dict() for one in self.each]
        assert all(one == found[0] for one in found), "equal on all ranks: saved once, loaded at any number"
        return found[0]

    def close(self) -> None:
        for one in self.each:
            one.close()
