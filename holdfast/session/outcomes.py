"""Outcome of each save: it is completed beside training, and the ranks exchange votes on it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from holdfast.errors import CheckpointError
from holdfast.session.agenda import Agenda
from holdfast.session.agreement import Group, Result, Vote
from holdfast.session.background import Background
from holdfast.session.boundary import Boundary
from holdfast.session.counts import Counts
from holdfast.session.due_calls import DueCalls
from holdfast.session.looks import until
from holdfast.session.own_buffers import OwnBuffers
from holdfast.session.rank_context import RankContext
from holdfast.session.rank_reporter import RankReporter
from holdfast.session.save_interval import SaveInterval
from holdfast.storage.checkpoints.save.writer import Save

_log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 0.05
"""Before the first look for the peer's copy, in seconds."""
APART_CALLS = 32
"""A rank so many calls ahead of all others when it hears their votes shares no collective in its steps with them."""
QUIET_S = 30.0
"""Between two lines in the log that report the same kind of failed saves."""


class Outcomes:
    """The outcome of each call on all ranks: found in the thread that saves, asked for by the one that trains."""

    def __init__(
        self, context: RankContext, boundary: Boundary, reporter: RankReporter, own: OwnBuffers
    ) -> None:
        self.counts = Counts()
        self.group = Group(with_distance=context.max_overhead is not None)
        self.agenda = Agenda()
        self.due = DueCalls()
        self.interval = SaveInterval(context.max_overhead)
        self.background = Background()
        self.changing: set[str] = set()
        """Tensors that changed in place during a copy: copied before ``checkpoint()`` returns from then on."""
        self.gone = False
        """Another rank is gone, or at another call: no save can become common any more in this epoch."""
        self.waiting = False
        """This rank waits for the others' votes."""
        self.apart = False
        """The others were many calls behind this rank when they gave their last votes."""
        self.may_again = False
        """A rank skipped the last call, or the next plan corrects it; the same on all ranks that heard its outcome."""
        self.common_step: int | None = None
        """The step of the newest save that all ranks have."""
        self.restored = 0
        """The step that all ranks began this epoch with."""
        self._context = context
        self._boundary = boundary
        self._reporter = reporter
        self._own = own
        self._copy_s = 0.0
        self._logged_at = -QUIET_S

    def conclude(self, vote: Vote, save: Save | None, replicated: int) -> None:
        """Finish a save in the thread, and receive the outcome of the call on all ranks."""
        final = self._finish(save, vote) if save is not None else vote
        late = self._own.late(time.monotonic())
        final = replace(
            final,
            calls=self.due.decided,
            distance=self.interval.calls,
            rejects=self.agenda.rejects,
            late=late,
            replicated=save.replicated if save and final.saved else (0,) * replicated,
        )
        all_there = self._vote(final, save)
        while all_there and (missed := self.due.missed()) is not None:
            all_there = self._vote(self._left_out(*missed, final), None)

    def _left_out(self, number: int, step: int, final: Vote) -> Vote:
        """Return the vote on a call that was due, and past when this rank heard of that."""
        return Vote(
            number,
            step,
            final.plan,
            skipped=True,
            late=self._own.late(time.monotonic()),
            calls=self.due.decided,
            rejects=self.agenda.rejects,
            replicated=(0,) * len(final.replicated),
        )

    def _vote(self, vote: Vote, save: Save | None) -> bool:
        """Exchange the votes on a call; return whether all ranks are there."""
        if self._own.single and not vote.saved:
            vote = replace(vote, copied=self._boundary.is_on_peer(self._own.keeps))
        result = self._exchange(vote)
        if result is None:
            return False
        self._on_result(result, vote, save)
        # Ranks that keep step and only save more slowly, or whose peers do, are where this one is.
        self.apart = self.due.decided - result.calls >= APART_CALLS
        if self._own.single:
            self._on_copies(result, vote)
        self.due.take(vote.number, result)  # last: from now on the next save may begin
        return True

    def _exchange(self, vote: Vote) -> Result | None:
        """Return the votes of all ranks; None when one of them is gone, or this process ends."""
        self.waiting = True
        try:
            return self.group.exchange(vote, self.background.ended)
        except CheckpointError as error:
            self.agenda.forget()
            if not self.background.ended():
                self.gone = True
                self.fail(vote.step, error)
            return None
        finally:
            self.waiting = False

    def _on_copies(self, result: Result, vote: Vote) -> None:
        """Copy a single buffer when all ranks have theirs, and free it when the peers of all have it."""
        if result.common:
            self._wait_for_copy()
            later = self._exchange(replace(vote, copied=self._boundary.copied))
            if later is None:
                return
            result = later
        if result.copied:
            self._own.copied()
        else:
            self._boundary.remind()

    def _finish(self, save: Save, vote: Vote) -> Vote:
        """Complete the shard, report it to the agent, and wait a bounded time for the peer's copy."""
        try:
            whole = save.run()
        except Exception as error:
            save.abandon()
            self.fail(save.step, error)
            return replace(vote, failed=True)
        if not whole:
            self.counts.torn += 1
            self.changing.update(save.torn)
            if save.torn:
                _log.warning(
                    "step %d is not saved: %s changed in place during the copy, not by an optimizer's step. From now "
                    "on it is copied before checkpoint() returns; or call Session.wait() before changing it.",
                    save.step,
                    ", ".join(save.torn[:5]),
                )
            else:
                _log.warning(
                    "step %d is not saved: the next step was complete before the copy, and no optimizer's step had "
                    "waited for it. Call Session.wait() before what changes the state without one.",
                    save.step,
                )
            return vote
        self.counts.saved += 1
        self._boundary.saved(save.step, save.path, save.nbytes)
        if self._own.single:  # the peer overwrites its copy: not before all ranks have theirs
            return replace(vote, saved=True, copied=False)
        self._wait_for_copy()
        return replace(vote, saved=True, copied=self._boundary.copied)

    def _wait_for_copy(self) -> None:
        """Look for the peer's copy until it is there."""
        self._copy_s = until(self._boundary.has_copy, self.background.ended, self._copy_s, LONGEST_PAUSE_S)

    def _on_result(self, result: Result, vote: Vote, save: Save | None) -> None:
        self.agenda.take(result)
        self.may_again = result.skipped or result.unequal or not result.same_call
        if result.common and save is not None:
            since = self.restored if self.common_step is None else self.common_step
            self.common_step = save.step
            saved = self._context.epoch, save.step
            self._own.common(saved, time.monotonic(), copied=result.copied, late=result.late)
            self.counts.common += 1
            self._boundary.common(save.step, save.path, since=since)
        elif result.unequal:
            _log.info(
                "step %d: tensors that were the same on all ranks are so no longer: a new plan", vote.step
            )
        elif result.same_call and not result.same_step:
            self.fail(
                vote.step,
                CheckpointError(
                    f"ranks are at different steps: this one calls checkpoint() the {vote.number}. time, at step "
                    f"{vote.step}. Call step() and checkpoint() for the same steps on all ranks."
                ),
            )

    def fail(self, step: int, error: Exception) -> None:
        """Count a failed save, and report it: training goes on."""
        self.counts.failed += 1
        reason = f"{type(error).__name__}: {error}"[:500]
        self._reporter.send("save_failed", step=step, reason=reason, failed=self.counts.failed)
        now = time.monotonic()
        if now - self._logged_at >= QUIET_S:
            self._logged_at = now
            _log.warning("step %d is not saved (%d failed so far): %s", step, self.counts.failed, reason)
