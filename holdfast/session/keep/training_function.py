"""``holdfast.run``: the training function of a process that may outlive its epoch."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.agent.wire import Sender
from holdfast.errors import CheckpointError
from holdfast.session.keep import groups, live
from holdfast.session.keep.main_thread import EpochOver, MainThread
from holdfast.session.keep.orders import EpochOrders
from holdfast.session.rank_context import RankContext
from holdfast.session.rank_reporter import RankReporter

Value = TypeVar("Value")

ALONE_S = 15.0
"""A rank that lost a peer waits so long for a word of its agent; then it ends, as it would without being kept."""
CLOSE_S = 10.0
"""Longest wait for the copy of a save that is under way. The agent may wait less (``keep_processes.switch_s``)."""
MOST_EPOCHS = 32
"""After so many a process ends with its epoch: threads and descriptors of the groups of each are left in it."""
_REMIND_S = 0.05


def run(train: Callable[[], Value]) -> Value:
    """Call ``train`` and return its result; in a recovery, call it again in the same process.

    Under an agent a rank that lost a peer, or whose epoch ends, leaves ``train`` by an exception, and when the job goes
    on ``train`` is called again: it makes its process group, model and ``Session`` as in a new process, and restores
    from there. What the process holds outside of ``train`` stays: imports, compiled code, caches, data. An error of
    ``train`` itself ends the process, as ever. Where a process cannot be kept the agent ends it and starts a new one.

    Without an agent, or in a replay, ``train`` is called once.

    Raises:
        ValueError: this is not the main thread.
    """
    context = RankContext.read(os.environ)
    if context is None or context.replay_steps is not None:
        return train()
    main = MainThread()
    gc.freeze()  # what was made before stays: when an epoch is over, only what it made is looked through
    for _ in range(MOST_EPOCHS):
        done = _epoch(train, main)
        if isinstance(done, _Done):
            return done.value
    return train()


@dataclass(frozen=True)
class _Done(Generic[Value]):
    value: Value


def _epoch(train: Callable[[], Value], main: MainThread) -> _Done[Value] | None:
    """Call ``train`` in the epoch that the environment names; None: it is over, and the next one has begun."""
    context = RankContext.read(os.environ)
    assert context is not None
    reporter = RankReporter(Sender(context.socket), context.rank, context.epoch)
    try:
        orders = EpochOrders(context.control, lambda: main.drive_out(context.epoch, groups.break_off))
    except OSError as error:
        sys.stderr.write(f"holdfast: this process cannot be kept: {error}\n")
        return _Done(train())
    try:
        reporter.send("keeps")
        left = _left(train, main, orders, context.epoch)
        if isinstance(left, _Done):
            return left
        reporter.send("leaving")
        try:
            _leave()
        except CheckpointError as error:
            raise (left.lost or error) from None  # a cascading failure stays one
        _await_next(orders, reporter, left.lost)
        return None
    finally:
        orders.close()


@dataclass(frozen=True)
class _Left:
    lost: BaseException | None
    """The error with which it lost a peer; None: its agent ordered it to leave."""


def _left(
    train: Callable[[], Value], main: MainThread, orders: EpochOrders, epoch: int
) -> _Done[Value] | _Left:
    """Call ``train``; return how it ended.

    Raises:
        Exception: an error of its own.
    """
    try:
        try:
            main.enter(epoch)
            if orders.over.is_set():  # before there was anything to be driven out of
                return _Left(None)
            value = train()
            main.leave()
            return _Done(value)
        except Exception as error:
            main.leave()
            if orders.over.is_set():
                return _Left(None)
            if (lost := _lost_peer(error)) is None:
                raise
            traceback.print_exception(error)
            return _Left(_alone(lost))
        finally:
            main.leave()
    except EpochOver:  # also in the middle of another exception
        main.leave()
        return _Left(None)


def _lost_peer(error: Exception) -> BaseException | None:
    from holdfast.agent.ranks import lost_peer  # noqa: PLC0415  (reads the patterns; ranks of an agent have it loaded)

    return lost_peer.behind(error)


def _alone(error: BaseException) -> BaseException:
    """Return the error without tracebacks, its own and of what it was raised from: frames hold the model."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _leave() -> None:
    """Give up what belongs to the epoch that is over.

    Raises:
        CheckpointError: a copy of its state is still under way: this process may not go on.
        RuntimeError: as torch raises it: the GPU failed, and no more can be done on it in this process.
    """
    groups.break_off()
    if not live.close_all(CLOSE_S):
        raise CheckpointError(f"a save of the epoch that is over is still under way after {CLOSE_S:g} s")
    _finish_on_device()
    groups.forget()


def _finish_on_device() -> None:
    """Wait until the GPU is through with all that the epoch handed to it; the agent ends a process that hangs here.

    Kernels go on when the line that launched them is left, and a context that failed fails again in the next epoch.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _await_next(orders: EpochOrders, reporter: RankReporter, lost: BaseException | None) -> None:
    """Return when the agent has ordered the next epoch and this process is in it.

    Raises:
        BaseException: ``lost``, when no word came from the agent.
    """
    from holdfast.agent.ranks import rank_main  # noqa: PLC0415  (a rank has it loaded)

    reason = {} if lost is None else {"error_type": type(lost).__name__, "message": str(lost)[:1000]}
    began, sent_at, pause, idle = time.monotonic(), -_REMIND_S, 0.0005, True
    while (order := orders.next()) is None:
        now = time.monotonic()
        if now - sent_at > _REMIND_S:  # a datagram may be lost
            reporter.send("left", at=time.time(), **reason)
            sent_at = now
        if idle:
            idle = False
            _free_memory()
        if lost is not None and not orders.over.is_set() and now - began > ALONE_S:
            raise lost
        time.sleep(pause)
        pause = min(pause * 1.2, 0.005)
    rank_main.go_on(order)
    context = RankContext.read(os.environ)
    assert context is not None
    RankReporter(Sender(context.socket), context.rank, context.epoch).send("joined")


def _free_memory() -> None:
    """Free what the training function left: its model may be made again."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
