"""Votes of the ranks about a save: exchanged beside the step, over a group of their own on the CPU.

At start-up, and when a plan is made, all ranks agree on their main threads (:meth:`Group.agree`). In between each
call of ``checkpoint`` has one exchange, made by the thread that saves (:meth:`Group.exchange`): no step waits for it.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import xxhash
from torch import Tensor
from torch import distributed as dist

from holdfast.errors import CheckpointError
from holdfast.session.kept_groups import keep, keep_the_scripts
from holdfast.session.looks import until

_opened = itertools.count()
"""Groups made in this epoch: all ranks count alike, whatever epochs their processes have seen."""
_LONGEST_PAUSE_S = 0.1
"""Between two looks."""
_NONE = -(1 << 62) - 1
"""Less than any hash, and than any negated."""

_ON_DUE_CALLS = "votes on due calls"
"""Where the ranks that do are counted."""
_BY_FIRST = "sends its votes to the first rank"
"""Likewise."""
_WITH_DISTANCE = "votes on the distance of saves"
"""Likewise."""
MOST_BY_FIRST = 32
"""Ranks that exchange votes by the first one. An all-reduce passes twice around the ring of all ranks, and each of them
waits for its turn on the processors that compute the step; the first rank of a large job would need a connection to
each of the others."""
_SAVED_LATE = 2
"""Flag of a rank that saved, and whose peers are late."""
TIMEOUT = timedelta(hours=12)
"""Of an exchange: ranks may be that far apart (one of them evaluates). A rank that died is noticed at once."""


def begin_epoch() -> None:
    """Count groups from the first again: the store of another epoch has none of them."""
    global _opened  # noqa: PLW0603
    _opened = itertools.count()


@dataclass(frozen=True)
class Vote:
    """The outcome of one call of ``checkpoint`` on this rank."""

    number: int
    """Of the call."""
    step: int
    plan: str
    saved: bool = False
    """Complete and, unless it is late, on the peer."""
    copied: bool = False
    """The peer has it, or there is none."""
    late: bool = False
    """By this rank's clock the peers are behind for so long that saves without a copy count."""
    skipped: bool = False
    failed: bool = False
    needs_plan: bool = False
    rejects: bool = False
    """This rank is past the call at which a plan was to be made."""
    calls: int = 0
    """Calls made so far."""
    distance: int = 1
    """Calls from one save to the next that this rank wants, by what saves cost."""
    replicated: tuple[int, ...] = ()
    """As the shard has it: what is saved once for several ranks."""


@dataclass(frozen=True)
class Result:
    """The votes of all ranks on one call."""

    common: bool
    """All have the save: of one step and one plan."""
    copied: bool = True
    """It is on the peers of all."""
    late: bool = False
    """A rank finds that the peers are behind for too long: all go by that, or they would keep different saves."""
    call: int = 0
    """The newest call that a rank voted on."""
    same_call: bool = True
    same_step: bool = True
    skipped: bool = False
    """A rank skipped it: nothing speaks against the next call."""
    failed: bool = False
    needs_plan: bool = False
    rejects: bool = False
    calls: int = 0
    distance: int = 1
    """The largest that a rank wants."""
    unequal: bool = False
    """Items that were saved once for several ranks differ on these: a new plan is needed."""


class Group:
    """All ranks, for small exchanges on the CPU. With one rank only it answers at once."""

    def __init__(self, *, with_distance: bool = False) -> None:
        """``with_distance``: votes say how far apart saves are to be."""
        self._group: Any = None
        self._with_distance = with_distance
        self._opened = False
        self._counter: Any = None
        self.votes_always = False
        """Whether a rank is of a release whose ranks vote on each call: then all do."""
        self.by_first = False
        """Whether votes go to the first rank, which sends all of them their outcome."""
        self._took_s = 0.0
        """How long the last exchange waited for the other ranks."""

    def open(self) -> None:
        """Make the group once, together with all ranks. Collective, on the main thread."""
        if self._opened:
            return
        self._opened = True
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._counter = dist.distributed_c10d.PrefixStore(
                f"holdfast/{next(_opened)}", dist.distributed_c10d._get_default_store()
            )
            self._counter.add(_ON_DUE_CALLS, 1)
            self._counter.add(_BY_FIRST, 1)
            if self._with_distance:
                self._counter.add(_WITH_DISTANCE, 1)
            self._group = _unknown_to_the_script(self._counter)
            keep(self._group)
            keep_the_scripts()

    @property
    def alone(self) -> bool:
        """Whether there is no other rank to ask."""
        return self._group is None

    def agree(self, *needs: int, equal: str = "") -> tuple[list[int], bool]:
        """Return the largest of all ranks' numbers for each need; and whether ``equal`` is the same on all.

        Waits for all ranks. Only on the main thread, and only while no exchange is under way.
        """
        if self._group is None:
            return list(needs), True
        gathered = torch.tensor((*needs, *_mirrored(_number_of(equal))), dtype=torch.int64, device="cpu")
        wait(self._group.allreduce([gathered], _largest()))
        if self._counter is not None:  # by now all ranks are in the group
            size = self._group.size()
            self.votes_always = self._counter.add(_ON_DUE_CALLS, 0) < size
            self.by_first = size <= MOST_BY_FIRST and self._counter.add(_BY_FIRST, 0) == size
            self._with_distance = self._with_distance and self._counter.add(_WITH_DISTANCE, 0) == size
            self._counter = None
        *flags, largest, smallest = gathered.tolist()
        return flags, all(_alike([largest, smallest]))

    def same(self, values: Sequence[int]) -> list[bool]:
        """Return, for each value, whether all ranks gave the same. Waits for all ranks, as :meth:`agree` does."""
        if self._group is None or not values:
            return [True] * len(values)
        gathered = torch.tensor(_mirrored(*values), dtype=torch.int64, device="cpu")
        wait(self._group.allreduce([gathered], _largest()))
        return _alike(gathered.tolist())

    def exchange(self, vote: Vote, ended: Callable[[float], bool]) -> Result:
        """Give this rank's vote on a call and receive all others'. In the thread that saves; each call once, in order.

        Args:
            vote: of this rank.
            ended: waits so many seconds; returns at once, with True, when this process ends.

        Raises:
            CheckpointError: another rank is gone, or this process ends.
        """
        if self._group is None:
            return Result(
                vote.saved,
                vote.copied,
                vote.late,
                skipped=vote.skipped,
                needs_plan=vote.needs_plan,
                failed=vote.failed,
                calls=vote.calls,
                distance=vote.distance,
                call=vote.number,
            )
        pairs = (vote.number, vote.step, _number_of(vote.plan))
        flags = (
            not vote.saved,
            not vote.copied,
            # Lateness matters of saves alone, and ranks of the release before know as many flags as these.
            _SAVED_LATE if vote.saved and vote.late else vote.saved,
            vote.skipped,
            vote.failed,
            vote.needs_plan,
            vote.rejects,
        )
        replicated = [each if vote.saved else 0 for each in vote.replicated]
        votes = torch.tensor(
            (
                *flags,
                vote.calls,
                *([vote.distance] if self._with_distance else ()),
                *_mirrored(*pairs),
                *_both_ways(replicated),
            ),
            dtype=torch.int64,
            device="cpu",
        )
        try:
            largest = (self._by_the_first if self.by_first else self._around)(votes, ended)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"ranks cannot agree on their saves: {error}") from error
        missing, uncopied, saved, skipped, failed, needs_plan, rejects, calls, *highest = largest.tolist()
        distance = highest.pop(0) if self._with_distance else 1
        same, equal = _alike(highest[:6]), _alike(highest[6:])
        return Result(
            common=not missing and all(same) and all(equal),
            copied=not uncopied,
            late=saved == _SAVED_LATE,
            call=highest[0],
            same_call=same[0],
            same_step=same[1],
            skipped=bool(skipped),
            failed=bool(failed),
            needs_plan=bool(needs_plan) or not all(equal),
            rejects=bool(rejects),
            calls=calls,
            distance=distance,
            unequal=not all(equal),
        )

    def _around(self, mine: Tensor, ended: Callable[[float], bool]) -> Tensor:
        """Return the largest that any rank has of each number in ``mine``: around the ring of all ranks."""
        self._complete(self._group.allreduce([mine], _largest()), ended)
        return mine

    def _by_the_first(self, mine: Tensor, ended: Callable[[float], bool]) -> Tensor:
        """Do as :meth:`_around` does, with a message to the first rank and one from it."""
        largest = torch.empty_like(mine)
        if self._group.rank():
            sent = self._group.gather([], [mine], dist.GatherOptions())
            self._complete(self._group.scatter([largest], [], dist.ScatterOptions()), ended)
            sent.wait()
            return largest
        every = list(mine.new_empty(self._group.size(), len(mine)))
        self._complete(self._group.gather([every], [mine], dist.GatherOptions()), ended)
        found = torch.stack(every).amax(0)
        self._group.scatter([largest], [[found] * len(every)], dist.ScatterOptions()).wait()
        return largest

    def _complete(self, work: Any, ended: Callable[[float], bool]) -> None:
        """Look for the end: a thread that waits inside torch when the interpreter ends takes the process with it."""
        self._took_s = until(work.is_completed, ended, self._took_s, _LONGEST_PAUSE_S)
        if not work.is_completed():
            raise CheckpointError("the process ends")
        work.wait()


def wait(work: Any) -> None:
    """Wait for all ranks. The analysis of a hang's stacks knows this file, and this name, for waiting."""
    work.wait()


def _unknown_to_the_script(store: Any) -> Any:
    """Make a group of all ranks that ``destroy_process_group()`` leaves alone: the last save may be under way then."""
    gloo: Any = dist.distributed_c10d.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = TIMEOUT
    options._devices = _devices(gloo)
    options._threads = 2 * len(options._devices)
    return gloo(store, dist.get_rank(), dist.get_world_size(), options)


def _devices(gloo: Any) -> list[Any]:
    """Return those that torch takes by itself, but a rank connects to another at their first exchange: to its two
    neighbours in the ring that an all-reduce is, not to all ranks at once."""
    names = [each for each in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if each]
    found = [gloo.create_device(interface=each, lazy_init=True) for each in names]
    return found or [gloo.create_default_device(lazy_init=True)]


@functools.cache
def _largest() -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
    return options


def _mirrored(*values: int) -> list[int]:
    """Return values, and the same negated: the largest of both show whether all ranks gave the same."""
    return [*values, *(-each for each in values)]


def _both_ways(hashes: Sequence[int]) -> list[int]:
    """Do the same as :func:`_mirrored` for positive numbers; a rank without one has no influence."""
    return [each or _NONE for each in hashes] + [-each or _NONE for each in hashes]


def _alike(largest: Sequence[int]) -> list[bool]:
    """Return, for each value, whether the largest mirrored values show that all ranks gave the same."""
    half = len(largest) // 2
    return [high in (-low, _NONE) for high, low in zip(largest[:half], largest[half:], strict=True)]


def _number_of(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode()) >> 1
