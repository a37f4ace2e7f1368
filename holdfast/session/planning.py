"""Plans: which rank saves what, agreed upon by all ranks, and the writer that saves by the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.errors import CheckpointError, HoldfastError, PartAwayError, ScriptRefusedError
from holdfast.session import rng
from holdfast.session.agreement import Group
from holdfast.session.own_buffers import OwnBuffers
from holdfast.session.rank_context import RankContext
from holdfast.session.shared import (
    Hashes,
    Replicated,
    hashes_of,
    in_one,
    share_alike,
    share_equal,
    share_nothing,
)
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.describe import HeldItems
from holdfast.storage.checkpoints.format.layout import ShardLayout
from holdfast.storage.checkpoints.format.plan import Shared, fits, hold, plan_of, settled, share_out
from holdfast.storage.checkpoints.save.collector import Contents
from holdfast.storage.checkpoints.save.writer import Owner, ShardWriter

Made = TypeVar("Made")
_AWAY, _OTHER, _OF_SCRIPT = 1, 2, 3
"""Failures, the gravest last: a part cannot be reached now; any other; one for which the script must change."""
ON_ANOTHER_RANK = "the state cannot be saved on another rank"


class Planner:
    """Makes this rank's plans, together with all ranks."""

    def __init__(self, context: RankContext, group: Group, own: OwnBuffers) -> None:
        self.writer: ShardWriter | None = None
        """By the present plan."""
        self.replicated: Replicated = ()
        """Items that the present plan saves once for several ranks."""
        self._context, self._group, self._own = context, group, own
        self._tree: StateTree | None = None
        self._kept: ShardLayout | None = None
        self._plans = 0
        self.away: PartAwayError | None = None
        """Why there was no first plan at the last attempt, on all ranks."""

    def tree_of(self, state: Mapping[str, Any]) -> StateTree:
        """Return the tree over ``state``, the same one at every call for the same state."""
        if self._tree is None or not self._tree.same(state):
            self._tree = StateTree(state, self._context.rank, self._context.world_size)
        return self._tree

    def collect(self, tree: StateTree) -> Contents | None:
        """Return the contents to save by the present plan; None when the plan does not fit any more."""
        if self.writer is None:
            return None
        fixed, loose = tree.split()
        return self.writer.collect(loose | rng.items(self._context.rank), fixed)

    def keep(self, path: Path) -> None:
        """Continue with the plan of the shard at ``path``, which the state was restored from, if all ranks can."""
        context = self._context
        self._kept = plan_of(path, context.shards, context.rank, context.world_size)

    def first(self, state: Mapping[str, Any], step: int, *, good: bool) -> bool:
        """Make the first plan, or continue with that of the epoch before; return whether this step is to be saved.

        Collective, on the main thread, as :meth:`together` is. Where a part of some rank's state is held elsewhere, and
        cannot be reached now, the step is not saved, and :attr:`away` is why.

        Raises:
            CheckpointError: the state cannot be saved; on all ranks.
        """
        self.away = None
        try:
            return self._first(state, step, good=good)
        except PartAwayError as error:
            self.away = error
            return False

    def _first(self, state: Mapping[str, Any], step: int, *, good: bool) -> bool:
        self._group.open()
        error: Exception | None = None
        tree: StateTree | None = None
        hashes: Hashes | None = None
        writer: ShardWriter | None = None
        try:
            if good:
                tree = self._readable(state)
                hashes = hashes_of(tree, self._group)
                writer = self._as_before_if_alike(tree, hashes)
        except Exception as caught:
            error = caught
        # Ranks of earlier releases put something else in one, or nothing: then all exchange what each has.
        agreed = f"{in_one(hashes)} saved by {_plan_of(writer)}"
        (bad, failed), alike = self._group.agree(not good, _failure(error), equal=agreed)
        if failed:
            raise self._refused(error, step, failed)
        if tree is not None and not alike:
            share_nothing(tree)
        if bad or tree is None:
            return False
        if not alike:
            writer = self._as_before_on_all(tree, hashes, step)
        if writer is None:
            self.together(state, step)
        else:
            self.writer, self.replicated = writer, tree.placing.replicated
        self._kept = None
        return True

    def _as_before_if_alike(self, tree: StateTree, hashes: Hashes | None) -> ShardWriter | None:
        """Return the writer that :meth:`_as_before` finds if all ranks' reports turn out to be the same as this one's.

        None where it fails: if they are the same, all make a new plan, and what is wrong is found there.
        """
        if self._kept is None:
            return None
        share_alike(tree, hashes)
        try:
            return self._as_before(tree)
        except Exception:
            return None

    def _as_before_on_all(self, tree: StateTree, hashes: Hashes | None, step: int) -> ShardWriter | None:
        """Return a writer by the plan of the epoch before, where all ranks can continue with it; their reports differ.

        Collective.
        """
        share_equal(tree, hashes, self._group)
        writer: ShardWriter | None = None
        error: Exception | None = None
        try:
            writer = self._as_before(tree)
        except Exception as caught:
            error = caught
        (failed, missing), same = self._group.agree(_failure(error), writer is None, equal=_plan_of(writer))
        if failed:
            raise self._refused(error, step, failed)
        return None if missing or not same else writer

    def together(self, state: Mapping[str, Any], step: int) -> ShardWriter:
        """Make a plan; return the writer by it. Fails on all ranks or on none.

        Work that a rank does alone ends before the others wait for it: a rank that cannot go on reports it to them.

        Raises:
            CheckpointError: there is no plan for the state, or no room for it.
        """
        tree = self._on_all(step, lambda: self._readable(state))
        hashes = self._on_all(step, lambda: hashes_of(tree, self._group))
        self._plans += 1
        share_equal(tree, hashes, self._group)
        held = self._on_all(step, lambda: self._held(tree))
        shared = share_out(held, f"{self._context.epoch}.{self._plans}")
        writer = self._on_all(step, lambda: self._written_by(shared, held, tree, step))
        self.writer, self.replicated = writer, tree.placing.replicated
        return writer

    def _readable(self, state: Mapping[str, Any]) -> StateTree:
        """Return the tree over ``state``, once nothing in it is known to prevent a save."""
        tree = self.tree_of(state)
        tree.flat()
        return tree

    def _items(self, tree: StateTree) -> dict[str, Any]:
        return tree.flat() | rng.items(self._context.rank)

    def _as_before(self, tree: StateTree) -> ShardWriter | None:
        """Return a writer by the plan of the shard that was restored, if that still fits."""
        items = self._items(tree)
        if self._kept is None or not fits(self._kept, items):
            return None
        writer = self._writer_of(self._kept)
        return writer if writer.collect(items) is not None else None

    def _held(self, tree: StateTree) -> HeldItems:
        context = self._context
        return hold(
            self._items(tree),
            machine=context.machine,
            private=(rng.key(context.rank), *tree.private),
            paths=tree.paths | rng.paths(context.rank),
        )

    def _written_by(self, shared: Shared, held: HeldItems, tree: StateTree, step: int) -> ShardWriter:
        context = self._context
        writer = self._writer_of(settled(shared, held, context.shards, context.epoch).layout)
        if writer.collect(self._items(tree)) is None:
            raise unsteady(context.rank, step)
        return writer

    def _writer_of(self, layout: ShardLayout) -> ShardWriter:
        context = self._context
        owner = Owner(context.job, context.epoch, context.rank, context.world_size)
        writer = ShardWriter(layout, owner, context.shards)
        writer.prepare(self._own.keeps, single=self._own.single)
        return writer

    def _refused(self, error: Exception | None, step: int, failed: int) -> HoldfastError:
        """Return the error to raise: the rank that met ``error`` reports it, the others that it was another rank.

        Args:
            error: of this rank; None: it met none.
            step: at which the state was to be saved.
            failed: the gravest failure of any rank.
        """
        kind = {_AWAY: PartAwayError, _OTHER: CheckpointError, _OF_SCRIPT: ScriptRefusedError}[failed]
        if error is None or failed > _AWAY == _failure(error):
            return kind(f"step {step}: {ON_ANOTHER_RANK}; see the log of that rank")
        if isinstance(error, HoldfastError):
            return error
        made = (ScriptRefusedError if _by_script(error) else CheckpointError)(
            f"rank {self._context.rank} at step {step}: the state cannot be saved: {type(error).__name__}: {error}"
        )
        made.__cause__ = error
        return made

    def _on_all(self, step: int, work: Callable[[], Made]) -> Made:
        """Return what ``work`` makes of this rank alone; raise on all ranks when it fails on one."""
        made: Made | None = None
        error: Exception | None = None
        try:
            made = work()
        except Exception as caught:
            error = caught
        (failed,), _ = self._group.agree(_failure(error))
        if failed:
            raise self._refused(error, step, failed)
        return cast(Made, made)


def _plan_of(writer: ShardWriter | None) -> str:
    return "" if writer is None else writer.layout.plan


def _failure(error: Exception | None) -> int:
    """Return what the ranks exchange about this rank's error; 0: none. Larger is graver."""
    if error is None:
        return 0
    return _AWAY if isinstance(error, PartAwayError) else _OF_SCRIPT if _by_script(error) else _OTHER


def _by_script(error: Exception | None) -> bool:
    """Return whether the script must change: it was refused, or its own ``state_dict()`` has a programming error."""
    return isinstance(
        error, ScriptRefusedError | TypeError | AttributeError | LookupError | NotImplementedError
    )


def unsteady(rank: int, step: int) -> ScriptRefusedError:
    """Return the error of a state that cannot be saved, since it differs at each look."""
    return ScriptRefusedError(
        f"rank {rank} at step {step}: the state changes between two looks at it. "
        "Give Session.checkpoint() objects whose state_dict() does not change by being called."
    )
