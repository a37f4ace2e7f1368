"""Saves of one epoch: each rank copies its own state while it computes on; what becomes of it is found beside that."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from holdfast.errors import CheckpointError, StaleError
from holdfast.session.agreement import Vote
from holdfast.session.boundary import Boundary
from holdfast.session.optimizer_params import first_params
from holdfast.session.outcomes import Outcomes
from holdfast.session.own_buffers import OwnBuffers
from holdfast.session.planning import Planner, unsteady
from holdfast.session.rank_context import RankContext
from holdfast.session.rank_reporter import RankReporter
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.save import buffers, room, slot_files
from holdfast.storage.checkpoints.save.collector import Contents
from holdfast.storage.checkpoints.save.prepared import SteadyTensors
from holdfast.storage.checkpoints.save.writer import Save, ShardWriter

_log = logging.getLogger(__name__)

PATIENCE_S = 0.01
"""A step that is over before the last save is complete waits at most this, or this part of a step:"""
WAIT_CALLS = 8
"""After so many calls left out in a row a rank that is far ahead of the others waits for them, at most this, in s:"""
APART_S = 2.0
PATIENCE_SHARE = 0.01
PLAN_PATIENCE_S = 600.0
"""Longest wait of a rank for all exchanges before a plan is made."""
HELD_S = 5.0
"""The save of a step that ranks are held at waits at most this for the one before it: they would wait anyway, and go on
from an older step without it."""
LAST_S = 60.0
"""The last save of a job waits at most this for the one before it, and for itself."""
LAST_PAUSES_S = (0.0, 0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Before each attempt at it: as many on all ranks, and longer in all than :data:`own_buffers.COPY_LAG_S`."""


class Saver:
    """Writes this rank's shards.

    All ranks make every call of :meth:`save`; after the first one, which makes the plan, no call waits for another
    rank. The thread behind it reports the outcome of each call, and learns which saves are common to all ranks.
    The newest common save is never overwritten.
    """

    def __init__(self, context: RankContext, boundary: Boundary, reporter: RankReporter) -> None:
        self._context = context
        self._boundary = boundary
        self._reporter = reporter
        self._own = OwnBuffers(single=context.copies.own == 1 and context.has_peer)
        self._outcomes = Outcomes(context, boundary, reporter, self._own)
        self.counts = self._outcomes.counts
        self._planner = Planner(context, self._outcomes.group, self._own)
        self._save: Save | None = None
        self._stalled_s = 0.0
        self._recorded = False
        """An optimizer's step is part of a CUDA graph: when that is replayed, nothing is called that could wait."""
        self._promised = False
        """The caller waits before anything changes that the save under way copies."""
        self._stepped: set[int] = set()
        """Of optimizers that waited for a save before they stepped, since the last one began."""
        self._unhook = _before_every_update(self)
        self._closed = False
        self._patient = True
        self._skipped = 0
        self._newest = 0
        self._beside = False
        """A save is under way in the step that training is in."""

    def require_room(self, state: Mapping[str, Any]) -> None:
        """Refuse ``state`` when the first tier has no room for its saves; warn when transfers will not fit beside.

        Raises:
            CheckpointError: states how much is needed.
        """
        context = self._context
        nbytes = self.tree_of(state).expected_nbytes()
        warning = room.require(context.shards, nbytes, context.local_world_size, context.copies)
        if warning and context.rank % context.local_world_size == 0:
            _log.warning("%s", warning)

    def take_over(self, others: Sequence[Path] = ()) -> None:
        """Ensure that no process of an older epoch can write into this rank's files, or ``others`` that it reads."""
        context = self._context
        ranks = {context.rank, *(buffers.rank_of(path) for path in others if path.parent == context.shards)}
        taken = [path for rank in ranks for path in slot_files.take_over(context.shards, rank, context.epoch)]
        if taken:
            _log.warning("a process of an older epoch is still there: it has %s no more", [*map(str, taken)])

    def keep_plan(self, path: Path) -> None:
        """Save by the plan of the shard at ``path``, which the state was restored from, if all ranks can do so.

        That shard is common to all ranks: it stays until a newer one is.
        """
        self._planner.keep(path)
        if (header := buffers.read_header(path)) is not None:
            self._own.restored((header.epoch, header.step), time.monotonic())
            if self._own.single:
                self._boundary.kept(header.step, path)

    def keep(self, saved: buffers.Saved) -> None:
        """Let the shards of ``saved`` stay until a newer save is common: the state was restored from all of them."""
        self._own.restored(saved, time.monotonic())

    def save(
        self,
        state: Mapping[str, Any],
        step: int,
        *,
        good: bool,
        everything: bool,
        step_s: float,
        restored: int = 0,
        again: bool = False,
    ) -> None:
        """Save ``state`` as that of ``step``, unless the step was not ``good`` (not finite).

        Returns when objects and tensors that no optimizer updates are copied; the others are copied while the
        next step computes (:meth:`wait`).

        Args:
            state: as given to the Session.
            step: the last completed step.
            good: whether its numbers were finite on this rank.
            everything: the caller promises that no tensor changes before :meth:`wait` or an optimizer's step.
            step_s: about how long a step takes, in seconds.
            restored: the step that this epoch began with; nothing is saved until the next one is completed.
            again: save the step even if this rank saved it before: another one skipped it.

        Raises:
            CheckpointError: there is no plan yet, and none can be made for ``state`` on all ranks.
            StaleError: the epoch is over.
        """
        if self._closed:
            raise StaleError(f"epoch {self._context.epoch} is over: step {step} is not saved")
        self.wait()
        self._outcomes.restored = restored
        self._outcomes.interval.called()
        number = self._outcomes.agenda.call()
        stepped = step > restored and (again or step != self._newest)
        if step < restored:
            self._outcomes.fail(step, _behind(step, restored))
        elif not stepped:
            self._count_unstepped(step)
        vote, save = Vote(number, step, ""), None
        known = not self._outcomes.due.unknown or self._settled(step, step_s)
        forced, planned = again or self._comes_together(step), False
        if self._planner.writer is None:
            forced = known = planned = True
            if not self._planner.first(state, step, good=good and stepped):
                if self._planner.away:
                    self._outcomes.fail(step, self._planner.away)
                return
        elif self._plans_now(number):
            forced = known = planned = True
            if not self._plan_again(state, step):
                vote = Vote(number, step, "", failed=True)
        if not self._outcomes.due.decide(number, step, forced=forced):
            self._outcomes.may_again = again
            if good and stepped and not self._outcomes.due.rests:
                self._leave_out(step)
            return
        if not vote.failed and good and stepped:
            vote, save = self._attempt(state, number, step, everything=everything, known=known)
        if save is not None:
            self._newest, self._beside = step, True
            self._outcomes.interval.saves(planned=planned)
        replicated = len(self._planner.replicated)
        self._outcomes.background.submit(functools.partial(self._conclude, vote, save, replicated))

    def save_last(
        self,
        state: Mapping[str, Any],
        step: int,
        *,
        good: bool,
        everything: bool,
        step_s: float,
        restored: int,
    ) -> None:
        """Save the last step of the job, as :meth:`save` does, but never leave it out for a save that is under way.

        Returns when all ranks have it, or cannot have it: an error, a step that is not finite, a rank that is gone.
        All ranks make as many attempts: what one skipped all skip, and hear of. So they do of tensors that were the
        same on all ranks until now, for which they make a new plan.
        """
        for pause_s in LAST_PAUSES_S:
            if not self.flush(LAST_S):
                self._outcomes.gone = (
                    True  # how many attempts the others make is not known: no later call would meet theirs
                )
                return
            if self._outcomes.gone or step in (self._outcomes.common_step, restored):
                return
            time.sleep(pause_s)
            self._outcomes.may_again = False
            self.save(
                state, step, good=good, everything=everything, step_s=step_s, restored=restored, again=True
            )
            if self.flush(LAST_S) and not self._outcomes.may_again:
                return

    def close(self, timeout_s: float) -> bool:
        """Give up all saves, for good: the epoch is over. Return whether nothing is written any more."""
        self._closed = True
        self._unhook()
        return self._outcomes.background.end(timeout_s)

    def wait(self) -> None:
        """Wait until no copy is under way: then tensors may be changed. Cheap when there is none."""
        save = self._save
        if save is not None:
            began = time.perf_counter()
            save.wait()
            self._stalled_s += time.perf_counter() - began

    def finish(self) -> None:
        """Do as :meth:`wait` does, and wait for the copy itself: what changes next may be in any stream of the GPU."""
        save = self._save
        if save is not None:
            began = time.perf_counter()
            save.finish()
            self._stalled_s += time.perf_counter() - began

    def passed(self, step_s: float) -> None:
        """Record that a step is complete, and what it took, in seconds.

        What it changed waited for the copy that is under way, or that save is lost.
        """
        self._outcomes.interval.step(step_s, beside=self._beside)
        self._beside = self._outcomes.background.busy
        if self._save is not None and not self._promised:
            self._save.doubt()

    def before_update(self, optimizer: Optimizer) -> None:
        """Do as :meth:`wait` does before an optimizer's step; from one that is recorded on, nothing is copied later.

        A graph that is recorded may wait for no work outside of it. One that was recorded before there was a saver, or
        a compiled step, does not come here at all: what its optimizer updates is copied at once.
        """
        if not _is_recorded():
            self._stepped |= first_params(optimizer)
            self.wait()
        elif not self._recorded:
            self._recorded = True
            _log.warning(
                "an optimizer's step is recorded as a CUDA graph, and nothing waits for a copy when that is replayed: "
                "all is copied before checkpoint() returns. checkpoint(state, overlap='all') and wait() before each "
                "replay are faster."
            )

    def take_stall(self) -> float:
        """Return seconds that training stood still for copies in :meth:`wait` since the last call."""
        taken, self._stalled_s = self._stalled_s, 0.0
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait at most so long for the last save to be complete, on the peer and known to all ranks; return whether."""
        return self._outcomes.background.wait(timeout_s)

    def _comes_together(self, step: int) -> bool:
        """Return whether all ranks save at this call: each waits for its last save, or all vote on every call."""
        waits = bool(self._context.patience_s) and not self._outcomes.due.rests
        return waits or self._boundary.must_hold(step) or self._outcomes.group.votes_always

    def _leave_out(self, step: int) -> None:
        """Save nothing at a call that is not due. A rank that is far ahead of the others waits for them a little."""
        self._skip(step)
        if self._skipped >= WAIT_CALLS and self._outcomes.apart and self._outcomes.waiting:
            # Only the others' calls are waited for: these ranks do not keep step, and would never save at one call.
            self._skipped = 0
            self.flush(APART_S)

    def _settled(self, step: int, step_s: float) -> bool:
        """Return whether the last save's outcome is known; wait a little, unless that was in vain the last time."""
        if self._boundary.must_hold(step):
            return self.flush(HELD_S)
        if not self._outcomes.background.busy:
            self._patient = True
            return True
        if (patience_s := self._context.patience_s) is not None:
            return self.flush(patience_s)
        self._patient = self._patient and self.flush(max(PATIENCE_S, PATIENCE_SHARE * step_s))
        return self._patient

    def _attempt(
        self, state: Mapping[str, Any], number: int, step: int, *, everything: bool, known: bool
    ) -> tuple[Vote, Save | None]:
        """Begin a save if nothing prevents it. Waits for no other rank, and raises nothing.

        ``known``: what became of the last save, which may be the newest one that all ranks have.
        """
        writer = self._planner.writer
        assert writer is not None
        plan = writer.layout.plan
        # Of a rank that is gone it is not known whether the others call the last save common: it stays, and so does the
        # one before it.
        may_save = known and not self._outcomes.gone and not self._outcomes.agenda.pending
        if not may_save or not self._own.may_begin(time.monotonic()):
            self._skip(step)
            return Vote(number, step, plan, skipped=True), None
        try:
            tree = self.tree_of(state)
            contents = self._planner.collect(tree)
            if contents is None and self._outcomes.group.alone:
                writer = self._planner.together(state, step)
                contents = self._planner.collect(tree)
            if contents is None:
                if self._outcomes.group.alone:
                    raise unsteady(self._context.rank, step)
                self._skip(step)
                return Vote(number, step, plan, skipped=True, needs_plan=True), None
            stepped, self._stepped = self._stepped, set()
            updated = tree.updated(frozenset() if self._recorded else stepped)
            return Vote(number, step, writer.layout.plan), self._start(
                writer, contents, number, step, None if everything else updated
            )
        except Exception as error:
            if writer.is_waiting_for_memory(self._own.keeps, in_place=self._own.in_place):
                self._skip(step)
                return Vote(number, step, plan, skipped=True), None
            self._outcomes.fail(step, error)
            return Vote(number, step, plan, failed=True), None

    def _start(
        self,
        writer: ShardWriter,
        contents: Contents,
        number: int,
        step: int,
        updated: frozenset[int] | None,
    ) -> Save:
        self._skipped, self._promised = 0, updated is None
        self._save = writer.start(
            contents,
            step,
            SteadyTensors(updated, frozenset(self._outcomes.changing)),
            number=number,
            keeps=self._own.keeps,
            in_place=self._own.in_place,
            replicated=self._planner.replicated,
        )
        return self._save

    def _conclude(self, vote: Vote, save: Save | None, replicated: int) -> None:
        """Find the outcome, in the thread. Optimizers wait for the copy until then: this saver is still needed."""
        self._outcomes.conclude(vote, save, replicated)

    def _plans_now(self, number: int) -> bool:
        """Return whether all ranks make a plan at this call; only then wait for the exchanges before it."""
        if not self._outcomes.agenda.due(number):
            return False
        self.counts.waited += self._outcomes.background.busy
        if not self._outcomes.background.wait(PLAN_PATIENCE_S):
            self._outcomes.agenda.forget()
        return self._outcomes.agenda.take_up(number)

    def _plan_again(self, state: Mapping[str, Any], step: int) -> bool:
        """Make a later plan, together with all ranks; return False when there is none."""
        try:
            self._planner.together(state, step)
        except Exception as error:
            self._outcomes.fail(step, error)
            return False
        return True

    def _skip(self, step: int) -> None:
        self.counts.skipped += 1
        self._skipped += 1
        self._reporter.send("skipped", step=step, skipped=self.counts.skipped)

    def _count_unstepped(self, step: int) -> None:
        self.counts.unstepped += 1
        if self.counts.unstepped == 1:
            _log.warning(
                "checkpoint() saves nothing at step %d: no step() since the last save or restore. "
                "Call session.step(number) before session.checkpoint(state).",
                step,
            )

    def tree_of(self, state: Mapping[str, Any]) -> StateTree:
        """Return the tree over ``state``, the same one at every call for the same state."""
        return self._planner.tree_of(state)


def _behind(step: int, restored: int) -> CheckpointError:
    return CheckpointError(
        f"the state was restored at step {restored}, and the script counts from an older one again: it repeats steps, "
        f"and nothing is saved until step {restored + 1}. Begin after the step that Session.restore(state) returns: "
        "range(session.restore(state) + 1, steps + 1)."
    )


def _before_every_update(saver: Saver) -> Callable[[], object]:
    """Have every optimizer wait for the copy under way before it changes parameters; return what ends that."""
    known = weakref.ref(saver)

    def wait(optimizer: Optimizer, *_: object) -> None:
        if (alive := known()) is not None:
            alive.before_update(optimizer)

    handle = register_optimizer_step_pre_hook(wait)
    return weakref.finalize(saver, handle.remove)


def _is_recorded() -> bool:
    """Return whether what this thread has its GPU do now is recorded as a CUDA graph, and not done."""
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return in_use and torch.cuda.is_current_stream_capturing()
