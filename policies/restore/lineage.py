"""Saved states that belong to the job's present history.

After a restore of step ``s``, everything that older epochs saved beyond ``s`` was thrown away on purpose
(NaN, silent corruption, a rollback) or is computed again: it must never be restored. So a state (epoch, step) counts
only if no later epoch started from an earlier step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class SavedBy(Protocol):
    """A shard or a checkpoint: saved at ``step`` by ``epoch``."""

    @property
    def epoch(self) -> int:
        """Epoch that saved it."""
        ...

    @property
    def step(self) -> int:
        """Step after which it was saved."""
        ...


class Started(Protocol):
    """An epoch of a job, which resumed after ``start_step``."""

    @property
    def epoch(self) -> int:
        """Its number."""
        ...

    @property
    def start_step(self) -> int:
        """The step that it restored; 0 from scratch."""
        ...


State = TypeVar("State", bound=SavedBy)


def valid(states: Iterable[State], epochs: Sequence[Started]) -> list[State]:
    """Return the states that belong to the present history, in the order given."""

    # Looked up once for each epoch that saved: its states are tens of thousands in a large job.
    @functools.cache
    def earliest(saved_by: int) -> int | None:
        return min((epoch.start_step for epoch in epochs if epoch.epoch > saved_by), default=None)

    return [state for state in states if (start := earliest(state.epoch)) is None or state.step <= start]
