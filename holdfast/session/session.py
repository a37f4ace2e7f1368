"""The facade that a training script uses."""

from __future__ import annotations

import logging
import math
import operator
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, SupportsFloat, SupportsIndex, get_args

import torch
import torch.distributed as dist

from holdfast.agent.wire import Control, Sender
from holdfast.errors import SettingsError
from holdfast.models.base import MOST_STEPS
from holdfast.session.boundary import Boundary
from holdfast.session.calls import Calls
from holdfast.session.claim import Claim, ForkNotice
from holdfast.session.counts import Counts
from holdfast.session.digests import Digests
from holdfast.session.keep import live
from holdfast.session.kept_groups import keep_the_scripts
from holdfast.session.phase import Phase, Phases
from holdfast.session.rank_context import RankContext
from holdfast.session.rank_reporter import RankReporter, encode
from holdfast.session.recovery import recover
from holdfast.session.restore import restore
from holdfast.session.restoring import restoring
from holdfast.session.saver import HELD_S, Saver
from holdfast.session.share import SampleShare, share_of
from holdfast.session.ticket import redeem
from holdfast.storage.checkpoints.load.safe_load import script_allows
from holdfast.storage.checkpoints.save.buffers import discard_newer

_log = logging.getLogger(__name__)

Overlap = Literal["optimizer", "all"]


class Session:
    """Connects a training script to the agent of its machine.

    Without an agent (plain ``torchrun`` or ``python``) every call is a no-op: ``restore`` returns 0,
    ``checkpoint`` saves nothing. In order, every step: :meth:`step`, then :meth:`checkpoint`.

    With or without an agent, the script's process groups are kept until the process ends: otherwise it may never end
    (:mod:`holdfast.session.kept_groups`).
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Read the rank's context from ``environ`` (default: the process's environment).

        Raises:
            SettingsError: an agent's environment is there and incomplete.
        """
        self._bystander: SettingsError | None = None
        self._context = context = self._claimed(RankContext.read(os.environ if environ is None else environ))
        keep_the_scripts()
        self._reporter: RankReporter | None = None
        if context:
            self._reporter = RankReporter(Sender(context.socket), context.rank, context.epoch)
            self._boundary = Boundary(self._control, self._reporter, has_peer=context.has_peer)
            self._saver = Saver(context, self._boundary, self._reporter)
            live.add(self._saver)
            self._calls = Calls()
        self._digests = Digests() if context and context.replay_steps is not None else None
        self._phases = Phases(self._reporter)
        self._step = self._start = 0
        self._step_s = 0.0
        self._good = True
        self._at_boundary = False
        self._due_step: int | None = None
        """The newest step of this epoch at which a save was due."""
        self._due_every = 1
        """Steps between the last two of these; the first is counted from the restored step."""
        self._stepped = time.perf_counter()
        self._notice = ForkNotice(context.rank, self._stand_by) if context else None

    def _stand_by(self, why: SettingsError) -> None:
        """Report and save nothing from now on, but answer as ever what a data loader's worker asks."""
        self._bystander, self._reporter, self._phases.reporter = why, None, None

    @property
    def _saves(self) -> bool:
        """Whether this process saves a rank's state."""
        return self._context is not None and self._bystander is None

    def _claimed(self, context: RankContext | None) -> RankContext | None:
        """Return the context; None where another process is the rank."""
        if context is None:
            return None
        self._control = Control(context.control)  # which closes the page's file: that would end a claim
        try:
            self._claim = Claim(context.control, context.rank)
        except SettingsError as error:
            _log.warning("%s", error)
            self._bystander = error
            return None
        return context

    def restore(self, state: Mapping[str, Any]) -> int:
        """Restore ``state`` and return the last completed step (0: nothing to restore). All ranks must call it.

        Args:
            state: name to module, optimizer or other ``Stateful``; the same names as in :meth:`checkpoint`.

        Raises:
            DamagedError: the checkpoint's bytes are not those that were saved.
            CheckpointError: it is missing, or does not fit ``state``; shared memory has no room for its saves; or a
                step was reported before.
            SettingsError: another process of the rank has a Session.
            UnavailableError: S3 does not answer.
        """
        if self._bystander:
            raise self._bystander
        context = self._context
        if context:
            self._calls.restores(state)
        keep_the_scripts()  # also of a script that made them, or more, after its session
        with restoring():
            with torch.inference_mode(mode=False):  # else what is made here could never be trained
                shard = self._load(state)
            if context and context.replay_steps is None:
                discard_newer(context.shards, self._start, context.rank)
                self._saver.require_room(state)
                if shard is not None and shard.is_file():
                    self._saver.keep_plan(shard)
        if self._reporter:
            self._reporter.send(
                "allows", names=script_allows()
            )  # what a restore may load, and so a rehearsal
        self._stepped = time.perf_counter()
        return self._start

    def _load(self, state: Mapping[str, Any]) -> Path | None:
        """Load ``state`` from where the agent has it; return the shard that all of it came from, if it was one."""
        context = self._context
        if context and context.restore.ticket:
            tree = self._saver.tree_of(state)
            cost, shard, kept = redeem(
                context.restore.ticket, tree, context.rank, self._saver.take_over, self._wait_at_restore
            )
            if kept is not None:
                self._saver.keep(kept)
            if self._reporter:
                self._reporter.send("restored", **cost)
            # Ranks that were started ahead learn the step only from their ticket.
            self._step = self._start = int(cost["step"])
            return shard
        if context and context.restore.path:
            shard = context.restore.path
            self._saver.take_over()
            if shard.is_dir():
                restore(self._saver.tree_of(state), shard, context.rank)
            else:
                shard = recover(self._saver.tree_of(state), context.rank, shard).shard
            self._step = self._start = context.restore.step
            return shard
        return None

    def phase(self, name: str) -> Phase:
        """Time a part of the step: ``with session.phase("forward"): ...``.

        ``eval`` (``evaluation``, ``validation``), ``checkpoint``, ``compile``, ``download``, ``prepare`` and
        ``tokenize`` may take long: in them a rank is not considered hanging.
        """
        return Phase(self._phases, name)

    def step(
        self,
        step: SupportsIndex,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        mfu: SupportsFloat | None = None,
    ) -> None:
        """Report that ``step`` (counted from 1) is complete, with its numbers.

        Args:
            step: its number, any integer (also of NumPy or torch).
            loss: of this rank or of all, as the script has it.
            grad_norm: before clipping.
            mfu: model FLOPs utilisation of the step, 0 to 1, where the script knows it.

        Raises:
            TypeError: the step's number is no integer, or another one no number.
            ValueError: the step's number is less than 1, or larger than 64 bits hold.
        """
        context, reporter = self._context, self._reporter
        if context is None or reporter is None:
            return
        step = _whole(step)
        now = time.perf_counter()
        numbers = {"loss": _number(step, "loss", loss), "grad_norm": _number(step, "grad_norm", grad_norm)}
        utilisation = _number(step, "mfu", mfu)
        bad = [f"{name} {each} at step {step}" for name, each in numbers.items() if not _finite(each)]
        if stalled_s := self._saver.take_stall():
            self._phases.add("checkpoint", stalled_s)
        reporter.send(
            "step",
            step=step,
            at=time.time(),
            s=round(now - self._stepped, 6),
            loss=encode(numbers["loss"]),
            grad_norm=encode(numbers["grad_norm"]),
            **({} if utilisation is None else {"mfu": encode(utilisation)}),
            **({} if self._due_every == 1 else {"saves": (self._due_step, self._due_every)}),
            phases=self._phases.take(),
        )
        self._calls.steps()
        self._step_s = now - self._stepped
        self._saver.passed(self._step_s)
        self._stepped, self._step, self._good = now, step, not bad
        if self._digests:
            self._digests.step(step, numbers["loss"], numbers["grad_norm"])
        if context.replay_steps is not None and bad:
            self._end_replay(ok=False, detail=", ".join(bad))
        if self._at_boundary and not self._is_expected(step):
            # The script does not checkpoint every step: stop here instead, unless it is about to.
            self._pause_or_end()
        self._at_boundary = True

    def checkpoint(
        self, state: Mapping[str, Any], *, overlap: Overlap = "optimizer", last: bool = False
    ) -> None:
        """Save ``state`` as of the last reported step. All ranks must call it. Nothing is saved in a replay.

        What the optimizers in ``state`` update (parameters, optimizer state) is copied while the next step
        computes; every ``torch.optim`` optimizer waits for that copy before it steps. All else (buffers such as
        running statistics, data position, random state, extras) is copied before this returns. A step whose loss
        or gradient norm is not finite on any rank is never restored; one that comes before the last save is
        complete is not saved (:attr:`counts`). Only the first call waits for other ranks, and those few at which
        the state's names, shapes or types have changed.

        Args:
            state: as in :meth:`restore`.
            overlap: ``all`` copies every tensor while the next step computes: for state that is updated without
                an optimizer of torch. Then call :meth:`wait` before any of it changes.
            last: the job ends with this step. It is saved whatever ``memory_every_steps`` is and however short
                the step was: the call waits for the save before it, and returns when all ranks have this one. The
                same on all ranks.

        Raises:
            ScriptRefusedError: at the first call, on all ranks: no restore could put the state back, or the calls
                before would lose steps at a restart (no :meth:`restore`, or one of another state; no :meth:`step`).
            CheckpointError: at the first call, on all ranks: shared memory is full, or the save fails otherwise. Later
                failures are counted, logged and reported to the agent; training goes on.
            SettingsError: another process of the rank has a Session.
            ValueError: ``overlap`` is none of these.
        """
        if self._bystander:
            raise self._bystander
        context = self._context
        if context is None:
            return
        if overlap not in get_args(Overlap):
            raise ValueError(f"Session.checkpoint(overlap={overlap!r}): expected 'optimizer' or 'all'")
        step = self._step
        if context.replay_steps is None:
            self._calls.saves(state)
        if context.replay_steps is None and (self._due(context, step) or last):
            if self._boundary.must_hold(step):
                # The state of the boundary itself is wanted: its save is not left out for one that is under way.
                self._saver.flush(HELD_S)
            everything, began = overlap == "all", time.perf_counter()
            save = self._saver.save_last if last else self._saver.save
            with torch.inference_mode(mode=False):  # else no later save could write into what is made here
                save(
                    state,
                    step,
                    good=self._good,
                    everything=everything,
                    step_s=self._step_s,
                    restored=self._start,
                )
            self._phases.add("checkpoint", time.perf_counter() - began)
        self._pause_or_end()
        self._at_boundary = False

    def wait(self) -> None:
        """Wait until no copy of the state is under way: needed before it is changed by anything but an optimizer.

        ``torch.optim`` optimizers wait by themselves. For other ways to change parameters in place (an optimizer
        of your own, ``tensor.data``, ``load_state_dict`` in the middle of training). Cheap when there is no copy.
        A copy from a GPU has ended when this returns: the change may be in any stream.
        """
        if self._saves:
            self._saver.finish()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until the last save is complete in memory and on the peer; False when it is not within ``timeout_s``."""
        return self._saver.flush(timeout_s) if self._saves else True

    def close(self, timeout_s: float) -> bool:
        """Give up all saves: the epoch is over (:func:`holdfast.run`). Return whether nothing is written any more."""
        return self._saver.close(timeout_s) if self._saves else True

    def skips(self, step: SupportsIndex) -> bool:
        """Return whether the script passes over the data of ``step``: the job failed at it repeatedly.

        Only where the job file allows it (``skip_bad_batches``). Read the batch, train on nothing, report the step as
        ever; all ranks get the same answer. Without an agent: False.
        """
        return self._context is not None and _whole(step, "skips") in self._context.skip_steps

    def share(
        self,
        step: SupportsIndex,
        batch: int,
        *,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> SampleShare:
        """Return this rank's samples of a step, whatever the number of ranks: the global batch stays the same.

        Without an agent the ranks are those of ``torchrun``.

        Args:
            step: the step that is about to be done, counted from 1.
            batch: samples of a step, of all ranks together.
            rank: this rank among those that read other data; None: all ranks do.
            ranks: number of those.

        Raises:
            TypeError: the step's number is no integer.
            ValueError: a number is out of range, or there are more ranks than samples.
        """
        context = self._context
        mine, all_ranks = (context.rank, context.world_size) if context else _place_by_torchrun()
        return share_of(
            _whole(step, "share"),
            batch,
            mine if rank is None else rank,
            all_ranks if ranks is None else ranks,
        )

    @property
    def active(self) -> bool:
        """Whether an agent started this process; if not, every call is a no-op."""
        return self._context is not None

    @property
    def replaying(self) -> bool:
        """Whether this is a replay: a few steps to find a machine that computes wrongly, of which nothing is kept."""
        return self._context is not None and self._context.replay_steps is not None

    @property
    def counts(self) -> Counts:
        """Outcomes of the saves so far."""
        return self._saver.counts if self._context else Counts()

    def _due(self, context: RankContext, step: int) -> bool:
        """Return whether ``step`` is saved: every k-th, and an epoch's first, which shows what cannot be saved at all.

        Of a script that does not call for every step, the first one at or after each k-th. The same on all ranks,
        since saves are collective.
        """
        k, before = context.memory_every, self._due_step
        due = before is None or step % k == 0 or step // k > before // k
        if due:
            self._due_every = max(1, step - (self._start if before is None else before))
            self._due_step = step
        return due

    def _is_expected(self, step: int) -> bool:
        """Return whether the script, which does not save every step, is about to save this one, by its last two."""
        return self._due_every > 1 and step - self._due_every == self._due_step

    def _pause_or_end(self) -> None:
        context = self._context
        if context is None:
            return
        if context.replay_steps is not None and self._step >= self._start + context.replay_steps:
            self._end_replay(ok=True)
        if self._boundary.must_hold(self._step):
            self._saver.flush(HELD_S)
        self._boundary.hold(self._step)

    def _wait_at_restore(self) -> None:
        if self._reporter:
            self._reporter.send("waits")

    def _end_replay(self, *, ok: bool, detail: str = "") -> None:
        if self._reporter:
            digests = self._digests.report() if self._digests else {}
            self._reporter.send("replayed", ok=ok, detail=detail, **digests)
        raise SystemExit(0)


def _whole(step: SupportsIndex, call: str = "step") -> int:
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"Session.{call}({step!r}): expected an integer, the number of a step") from None
    if not 1 <= number <= MOST_STEPS:
        raise ValueError(
            f"Session.{call}({number}): expected 1 to {MOST_STEPS}, the number of a step. Steps count from 1: "
            "for step in range(session.restore(state) + 1, steps + 1)"
        )
    return number


def _number(step: int, name: str, value: SupportsFloat | None) -> float | None:
    """Return a number that the script reports with a step.

    Raises:
        TypeError: it is none, or more than one.
        RuntimeError: as torch raises it: the device failed.
    """
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and getattr(value, "numel", lambda: 1)() == 1:
            raise  # one number it is: its device failed, at this copy or at a kernel before
        raise TypeError(
            f"Session.step({step}, {name}={value!r:.100}): expected one number, such as loss.item(), or nothing"
        ) from None


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _place_by_torchrun() -> tuple[int, int]:
    """Return this process's rank and the number of ranks: those of its process group, or of its environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
