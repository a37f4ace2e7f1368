"""The facade that a training script uses."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any, SupportsFloat

from holdfast.agent.wire import Control, Sender
from holdfast.session.boundary import Boundary
from holdfast.session.context import Context
from holdfast.session.phase import Phase, Phases
from holdfast.session.report import Reporter, encode
from holdfast.session.restore import restore
from holdfast.session.saver import Saver
from holdfast.storage.checkpoints.buffers import discard_newer


class Session:
    """Connects a training script to the agent of its machine.

    Without an agent (plain ``torchrun`` or ``python``) every call is a no-op: ``restore`` returns 0,
    ``checkpoint`` saves nothing. In order, every step: :meth:`step`, then :meth:`checkpoint`.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Read the rank's context from ``environ`` (default: the process's environment).

        Raises:
            SettingsError: an agent's environment is there and incomplete.
        """
        self._context = context = Context.read(os.environ if environ is None else environ)
        self._reporter: Reporter | None = None
        if context:
            self._reporter = Reporter(Sender(context.socket), context.rank, context.epoch)
            self._boundary = Boundary(Control(context.control), self._reporter)
            self._saver = Saver(context)
        self._phases = Phases(self._reporter)
        self._step = self._start = 0
        self._good = True
        self._at_boundary = False
        self._stepped = time.perf_counter()

    def restore(self, state: Mapping[str, Any]) -> int:
        """Bring ``state`` back and return the last completed step (0: nothing to restore).

        Args:
            state: name to module, optimizer or other ``Stateful``; the same names as in :meth:`checkpoint`.

        Raises:
            CheckpointError: the shard is torn, or does not fit ``state``.
        """
        context = self._context
        if context and context.restore.path:
            restore(state, context.restore.path, context.rank)
            self._step = self._start = context.restore.step
        if context and context.replay_steps is None:
            discard_newer(context.shards, self._start, context.rank)
        self._stepped = time.perf_counter()
        return self._start

    def phase(self, name: str) -> Phase:
        """Time a part of the step: ``with session.phase("forward"): ...``.

        ``eval``, ``checkpoint`` and ``compile`` may take long: in them a rank is not taken for hanging.
        """
        return Phase(self._phases, name)

    def step(
        self, step: int, loss: SupportsFloat | None = None, grad_norm: SupportsFloat | None = None
    ) -> None:
        """Report that ``step`` (counted from 1) is complete, with its numbers."""
        context, reporter = self._context, self._reporter
        if context is None or reporter is None:
            return
        now = time.perf_counter()
        numbers = {
            "loss": None if loss is None else float(loss),
            "grad_norm": None if grad_norm is None else float(grad_norm),
        }
        bad = [f"{name} {each} at step {step}" for name, each in numbers.items() if not _finite(each)]
        reporter.send(
            "step",
            step=step,
            at=time.time(),
            s=round(now - self._stepped, 6),
            loss=encode(numbers["loss"]),
            grad_norm=encode(numbers["grad_norm"]),
            phases=self._phases.take(),
        )
        self._stepped, self._step, self._good = now, step, not bad
        if context.replay_steps is not None and bad:
            self._end_replay(ok=False, detail=", ".join(bad))
        if self._at_boundary:  # the script does not checkpoint every step: stop here instead
            self._pause_or_end()
        self._at_boundary = True

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save ``state`` as of the last reported step. All ranks must call it. Nothing is saved in a replay.

        A step whose loss or gradient norm is not finite on any rank is not saved.

        Raises:
            CheckpointError: the state cannot be saved, or shared memory is full.
        """
        context, reporter = self._context, self._reporter
        if context is None or reporter is None:
            return
        step = self._step
        if context.replay_steps is None and step > self._start:
            path = self._saver.save(state, step, good=self._good)
            if path:
                nbytes = path.stat().st_size
                self._tell_saved(reporter, step, str(path), nbytes)
        self._pause_or_end()
        self._at_boundary = False

    def _tell_saved(self, reporter: Reporter, step: int, path: str, nbytes: int) -> None:
        def announce() -> bool:
            return reporter.send("saved", step=step, path=path, nbytes=nbytes)

        if self._context and self._context.has_peer:
            self._boundary.wait_for_copy(step, announce)
        else:
            announce()

    def _pause_or_end(self) -> None:
        context = self._context
        if context is None:
            return
        if context.replay_steps is not None and self._step >= self._start + context.replay_steps:
            self._end_replay(ok=True)
        self._boundary.hold(self._step)

    def _end_replay(self, *, ok: bool, detail: str = "") -> None:
        if self._reporter:
            self._reporter.send("replayed", ok=ok, detail=detail)
        raise SystemExit(0)


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
