"""Saves of one epoch: all ranks decide together, then each copies its own state while it computes on."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.errors import CheckpointError
from holdfast.session import rng
from holdfast.session.agreement import agree
from holdfast.session.boundary import Boundary
from holdfast.session.context import Context
from holdfast.session.report import Reporter
from holdfast.session.shared import share_equal
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints import room
from holdfast.storage.checkpoints.layout import ShardLayout
from holdfast.storage.checkpoints.plan import fits, make_plan, plan_of
from holdfast.storage.checkpoints.writer import Contents, Owner, Save, ShardWriter

_log = logging.getLogger(__name__)

PATIENCE_S = 0.01
"""A step that is over before the last save is complete waits at most this, or this part of a step:"""
PATIENCE_SHARE = 0.01


@dataclass
class Counts:
    """What became of the calls of ``checkpoint``."""

    saved: int = 0
    """Complete in shared memory."""
    skipped: int = 0
    """Left out, since the save before was not complete and copied to the peer yet."""
    torn: int = 0
    """Given up, since a tensor was changed in place during the copy."""


class Saver:
    """Writes this rank's shards. :meth:`save` is collective."""

    def __init__(self, context: Context, boundary: Boundary, reporter: Reporter) -> None:
        self.counts = Counts()
        self._context = context
        self._boundary = boundary
        self._reporter = reporter
        self._tree: StateTree | None = None
        self._writer: ShardWriter | None = None
        self._kept: ShardLayout | None = None
        self._plans = 0
        self._save: Save | None = None
        self._stalled_s = 0.0
        self._done: Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._changing: set[str] = set()
        self._patient = True

    def require_room(self, state: Mapping[str, Any]) -> None:
        """Refuse ``state`` when shared memory has no room for its saves.

        Raises:
            CheckpointError: says how much is needed.
        """
        context = self._context
        nbytes = self.tree_of(state).expected_nbytes()
        room.require(context.shards, nbytes, context.local_world_size, peer=context.has_peer)

    def keep_plan(self, path: Path) -> None:
        """Save by the plan of the shard at ``path``, which the state was restored from, if all ranks can do so."""
        context = self._context
        self._kept = plan_of(path, context.shards, context.rank, context.world_size)

    def save(
        self, state: Mapping[str, Any], step: int, *, good: bool, everything: bool, step_s: float
    ) -> None:
        """Save ``state`` as that of ``step``, unless any rank's step was not ``good`` (not finite).

        Returns when objects and tensors that no optimizer updates are copied; the others are copied while the
        next step computes (:meth:`wait`). The exchange of needs is a barrier as well: no rank overwrites its
        shard of the save before last until all ranks have completed the last one and their peers have it, so
        that a common step always exists.

        Args:
            state: as given to the Session.
            step: the last completed step.
            good: whether its numbers were finite on this rank.
            everything: the caller promises that no tensor changes before :meth:`wait` or an optimizer's step.
            step_s: about how long a step takes, in seconds.
        """
        self.wait()
        tree = self.tree_of(state)
        items = tree.flat() | rng.items(self._context.rank)
        kept, self._kept = self._kept, None
        if kept is not None and fits(kept, items):
            self._writer = self._writer_of(kept)
        contents = self._writer.collect(items) if self._writer else None
        bad, plan, busy = agree(
            not good,
            contents is None,
            not self._settled(step, step_s),
            equal=self._writer.layout.plan if self._writer else "",
        )
        if bad:
            return
        if busy:
            self.counts.skipped += 1
            self._reporter.send("skipped", step=step, skipped=self.counts.skipped)
            return
        if plan:
            self._finish()
            share_equal(tree)
            items = tree.flat() | rng.items(self._context.rank)
            self._writer = self._plan(tree, items)
            contents = self._writer.collect(items)
        if self._writer is None or contents is None:
            raise CheckpointError(
                f"rank {self._context.rank} at step {step}: the state changes between two looks at it. "
                "Give Session.checkpoint() objects whose state_dict() does not change by being called."
            )
        self._start(self._writer, contents, step, None if everything else tree.updated())

    def wait(self) -> None:
        """Return when no copy is under way any more: tensors may be changed. Cheap when there is none."""
        save = self._save
        if save is not None:
            began = time.perf_counter()
            save.wait()
            self._stalled_s += time.perf_counter() - began

    def take_stall(self) -> float:
        """Seconds that training stood still for copies in :meth:`wait` since the last call."""
        taken, self._stalled_s = self._stalled_s, 0.0
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until the last save is complete and on the peer, at most so long; whether it is."""
        deadline = time.monotonic() + timeout_s
        pause = 0.0001
        while not self._complete():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)
        return True

    def _settled(self, step: int, step_s: float) -> bool:
        """Whether the last save is complete; waits a little, unless that was in vain the last time."""
        if self._boundary.must_hold(step):
            return self.flush(self._boundary.longest_s)
        if self._complete():
            self._patient = True
            return True
        if (patience_s := self._context.patience_s) is not None:
            return self.flush(patience_s)
        self._patient = self._patient and self.flush(max(PATIENCE_S, PATIENCE_SHARE * step_s))
        return self._patient

    def _complete(self) -> bool:
        if self._done is None:
            return True
        if not self._done.done():
            return False
        self._done.result()
        return self._boundary.has_copy()

    def _start(
        self, writer: ShardWriter, contents: Contents, step: int, updated: frozenset[int] | None
    ) -> None:
        def steady(name: str, tensor: Tensor) -> bool:
            return name not in self._changing and (updated is None or tensor.data_ptr() in updated)

        self._save = writer.start(contents, step, steady)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "holdfast-save")
            _before_every_update(self)
        self._done = self._thread.submit(self._run, self._save)

    def _run(self, save: Save) -> None:
        """In the thread: finish a save and tell the agent."""
        if not save.run():
            self.counts.torn += 1
            self._changing.update(save.torn)
            _log.warning(
                "step %d is not saved: %s changed in place during the copy, not by an optimizer's step. From now on "
                "it is copied before checkpoint() returns; or call Session.wait() before changing it.",
                save.step,
                ", ".join(save.torn[:5]),
            )
            return
        self.counts.saved += 1
        self._boundary.saved(save.step, save.path, save.nbytes)

    def _finish(self) -> None:
        if self._done is not None:
            self._done.result()

    def tree_of(self, state: Mapping[str, Any]) -> StateTree:
        """The tree over ``state``, one for all looks at it."""
        if self._tree is None or not self._tree.same(state):
            self._tree = StateTree(state, self._context.rank, self._context.world_size)
        return self._tree

    def _plan(self, tree: StateTree, items: Mapping[str, Any]) -> ShardWriter:
        context = self._context
        self._plans += 1
        key = rng.key(context.rank)
        planned = make_plan(
            items,
            context.shards,
            context.epoch,
            self._plans,
            machine=context.machine,
            private=(key, *tree.private),
            paths=tree.paths | rng.paths(context.rank),
        )
        return self._writer_of(planned.layout)

    def _writer_of(self, layout: ShardLayout) -> ShardWriter:
        context = self._context
        owner = Owner(context.job, context.epoch, context.rank, context.world_size)
        writer = ShardWriter(layout, owner, context.shards)
        writer.prepare()
        return writer


def _before_every_update(saver: Saver) -> None:
    """Have every optimizer wait for the copy under way before it changes parameters."""
    known = weakref.ref(saver)

    def wait(*_: object) -> None:
        if (alive := known()) is not None:
            alive.wait()

    handle = register_optimizer_step_pre_hook(wait)
    weakref.finalize(saver, handle.remove)
