"""Agreement of all ranks on what was listed: one lists, each reads its share of the files' ends, all know the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from holdfast.errors import HoldfastError, SourceError

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Agreement(Protocol):
    """The ranks of a run. Every rank makes every call, in the same order."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def ranks(self) -> int:
        """Their number."""
        ...

    def one(self, make: Callable[[], T]) -> T:
        """Return on every rank what rank 0 makes; its error is raised on every rank."""
        ...

    def each(self, make: Callable[[], T]) -> list[T]:
        """Return on every rank what each rank makes, by rank; one rank's error is raised on every rank."""
        ...


class Alone:
    """A process by itself."""

    rank, ranks = 0, 1

    def one(self, make: Callable[[], T]) -> T:
        """Make it."""
        return make()

    def each(self, make: Callable[[], T]) -> list[T]:
        """Make it."""
        return [make()]


class Grouped:
    """Ranks of torch.distributed, over a group of their own on the CPU: made at the first call, by all of them."""

    def __init__(self) -> None:
        from torch import distributed as dist  # noqa: PLC0415  (a second of start-up)

        self._dist = dist
        self._world = dist.group.WORLD
        self._group = dist.new_group(backend="gloo")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    @property
    def is_past(self) -> bool:
        """Whether the ranks have another process group by now: a process was kept over an epoch's end."""
        return self._dist.is_initialized() and self._dist.group.WORLD is not self._world

    def one(self, make: Callable[[], T]) -> T:
        """Broadcast from rank 0."""
        sent = [_tried(make) if self.rank == 0 else None]
        self._dist.broadcast_object_list(sent, src=0, group=self._group)
        made: T = _opened(sent)[0]
        return made

    def each(self, make: Callable[[], T]) -> list[T]:
        """Gather from all ranks."""
        gathered: list[Any] = [None] * self.ranks
        self._dist.all_gather_object(gathered, _tried(make), group=self._group)
        return _opened(gathered)


def agreement() -> Agreement:
    """Return the process group's, or that of a process by itself."""
    try:
        from torch import distributed as dist  # noqa: PLC0415  (a second of start-up)
    except ImportError:
        return Alone()
    return Grouped() if dist.is_available() and dist.is_initialized() else Alone()


def _tried(make: Callable[[], Any]) -> tuple[Any, HoldfastError | None]:
    try:
        return make(), None
    except HoldfastError as error:
        return None, error
    except Exception as error:  # a torn file raises nearly anything; the other ranks would wait for this one
        _log.warning("data cannot be read", exc_info=True)
        return None, SourceError(f"data cannot be read: {type(error).__name__}: {error}")


def _opened(results: list[Any]) -> list[Any]:
    for _, error in results:
        if error is not None:
            raise error
    return [made for made, _ in results]
