"""First code of every forked process: makes it the agent's own, and turns a rank into the user's script.

Loaded in the fork server in advance; imports nothing heavy itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import importlib
import io
import multiprocessing.forkserver
import os
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.agent import wire
from holdfast.agent.ranks import (
    epoch_groups,
    flight_thread,
    marks,
    own_interpreter,
    scratch,
    script,
    trackers,
)
from holdfast.agent.ranks.lowest import lowest_priority
from holdfast.agent.ranks.only_member import only_member
from holdfast.agent.ranks.own_code import is_own

NICE = 10  # the control plane on the same host stays responsive
REHEARSAL = "holdfast.session.rehearsal"
_PR_SET_PDEATHSIG = 1
_TRACEBACK_CHARS = 4000
_LOST_CUDA = (
    "a module that the agent loads in advance (setting preload) uses CUDA as it is loaded: this rank loads Python "
    "and its libraries by itself, which takes seconds at each start. Take that module out of the setting."
)


@dataclass(frozen=True)
class RankOrder:
    """The parameters with which a rank process becomes the user's script."""

    rank: int
    epoch: int
    script: str
    args: tuple[str, ...]
    cwd: str
    log: str
    socket: str
    env: dict[str, str] = field(default_factory=dict)
    group: str = ""
    """The file by which it joins its epoch's control group."""
    nicer: int = 0
    """By how much it gives way to ranks of its machine."""


def bootstrap(
    target: Callable[..., None], args: tuple[Any, ...], environment: dict[str, str] | None = None
) -> None:
    """Settle a freshly forked process, in ``environment`` if given, then run ``target(*args)`` in it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)  # the fork server died before the line above
    os.setsid()  # as under torchrun
    os.nice(NICE)
    if environment is not None:
        _adopt(environment)
    _leave_fork_server()
    trackers.leave_fork_servers()
    _leave_finalizers()
    gc.freeze()  # collections need not touch, and so copy, the pages shared with the fork server
    _enter_target(target, args)


def wait(orders: Connection[Any, Any], settled: Connection[Any, Any]) -> None:
    """Settle, wait for an order of what to run, run it: the body of a spare process."""
    with lowest_priority():  # beside a job that has just been recovered
        _touch()
    with contextlib.suppress(BrokenPipeError), settled:  # it may be wanted already
        settled.send(True)
    try:
        target, args = orders.recv()
    except EOFError:
        return
    orders.close()
    _enter_target(target, args)


def nothing() -> None:
    """Prove that forking works."""


def run_named(module: str, name: str, *args: Any) -> None:
    """Run a function that only the fork server has loaded, so that the agent need not."""
    getattr(importlib.import_module(module), name)(*args)


def arm_faults() -> None:
    """Let faults that are injected into this machine act in this process (demo and tests only)."""
    if folder := os.environ.get(wire.ENV_FAULTS):
        from holdfast.damage import hook  # noqa: PLC0415  (absent from production processes)

        hook.arm(Path(folder))


_orders: list[RankOrder] = []
"""That of this process; its newest one, where it was kept over several epochs, is the last."""


def go_on(fields: dict[str, Any]) -> None:
    """Become the same rank in the epoch of another order, with this process as it is. Its temporary folder stays."""
    order = RankOrder(**fields)
    _redirect(order.log)
    os.environ.update({name: value for name, value in order.env.items() if name != "TMPDIR"})
    marks.mark(order.env[wire.ENV_CONTROL])
    epoch_groups.join(order.group)
    flight_thread.begin_epoch()
    _orders.append(order)


def run_rank(order: RankOrder) -> None:
    """Run the user's script as torchrun would; report an uncaught exception to the agent first."""
    if (lost := own_interpreter.lost_cuda()) or own_interpreter.needed(order.env, os.environ):
        _redirect(order.log)  # the loader may complain
        if lost:
            sys.stderr.write(f"holdfast: {_LOST_CUDA}\n")
            sys.stderr.flush()
        own_interpreter.enter(dataclasses.asdict(order))
    _orders.append(order)
    epoch_groups.join(order.group)
    os.nice(order.nicer)
    _redirect(order.log)
    os.environ.update(order.env)
    marks.mark(order.env[wire.ENV_CONTROL])
    _be_a_main_process()
    scratch.enter(order.env["TMPDIR"])
    flight_thread.start(order.rank)
    _limit_threads()
    arm_faults()
    path, pid = _enter(order), os.getpid()
    status = 1
    try:
        script.run(path)
        status = 0
    except SystemExit as end:
        status = script.status(end)
        if isinstance(end.code, str) and os.getpid() == pid:  # its last words, which Python writes to stderr
            _report_end(end)
        raise
    except BaseException as error:
        if os.getpid() == pid:  # not a process that the script forked: the rank may well go on
            _report_end(error)
        script.report(error, script.without_runner(error.__traceback__, __file__))
        raise SystemExit(1) from None
    finally:
        script.finish(status)


def main() -> None:
    """Run the order of a rank that has an interpreter of its own."""
    run_rank(RankOrder(**own_interpreter.taken_order()))


def _enter_target(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    if target not in (run_rank, wait):  # a rank enters its own environment first
        arm_faults()
    target(*args)


def _touch() -> None:
    """Train, save and restore once, small, so that a rank's first step finds things set up and pages copied.

    Not where torch has CUDA: the step would start the driver before the rank's environment names the visible
    devices.
    """
    torch, rehearsal = sys.modules.get("torch"), sys.modules.get(REHEARSAL)
    if torch is None or rehearsal is None or torch.version.cuda is not None or torch.version.hip is not None:
        return
    torch.set_num_threads(1)
    try:
        rehearsal.rehearse()
    except Exception:  # only time is lost; a rank run by this process will report what is wrong
        traceback.print_exc()


def _adopt(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if "TMPDIR" in environment:
        scratch.enter(environment["TMPDIR"])


def _leave_fork_server() -> None:
    """Detach this process from the agent's fork server.

    The server lives as long as any process has the write end of its pipe: it must be the agent alone. And a
    script that uses the forkserver method (data loaders) gets a server of its own.
    """
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server.__init__()  # the module's functions are bound to this object


def _be_a_main_process() -> None:
    """Let ``multiprocessing`` look as in a program that was executed.

    A process that was forked by a fork server has its children started by one, too: data loaders would then need
    scripts with a guarded main part, and data sets that pickle.
    """
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().name = "MainProcess"
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]


def _leave_finalizers() -> None:
    """Forget the functions that the fork server's modules want run when it ends.

    That is the server's work, not that of every process that ends before it; and it takes tens of milliseconds of each
    rank that has lost its peer, just when a recovery begins. What the script registers is its own.
    """
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


def _redirect(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a script whose process is kept may have put something else there
        sys.stdout.reconfigure(line_buffering=True)


def _limit_threads() -> None:
    """Apply OMP_NUM_THREADS: the OpenMP runtime read its environment when the fork server loaded it."""
    if (torch := sys.modules.get("torch")) is not None and (threads := os.environ.get("OMP_NUM_THREADS")):
        torch.set_num_threads(int(threads))


def _enter(order: RankOrder) -> str:
    """Change into the checkout; return the script's absolute path. ``sys`` looks as under ``python SCRIPT``.

    Of a script that is a symbolic link the modules lie beside what that leads to.
    """
    here = os.getcwd()
    os.chdir(order.cwd)
    path = os.path.abspath(order.script)
    beside = os.path.dirname(os.path.realpath(path))
    sys.path[:] = [beside, *(entry for entry in sys.path if entry not in ("", here))]
    sys.argv = [path, *order.args]
    script.forget_shadowed(Path(beside))
    return path


def _report_end(error: BaseException) -> None:
    """Report to the agent by what the rank ends."""
    order, tail = _orders[-1], script.without_runner(error.__traceback__, __file__)
    wire.Sender(order.socket).send(_failure(order, error, tail))


def _failure(order: RankOrder, group: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    error = only_member(group)
    trace = trace if error is group else error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, trace))
    return {
        "t": "failed",
        "rank": order.rank,
        "epoch": order.epoch,
        "at": time.time(),
        "error_type": type(error).__name__,
        "message": _message(error)[:1000],
        "traceback": text[-_TRACEBACK_CHARS:],
        "user_frame": _user_frame(error, trace, os.path.realpath(order.cwd)),
        "restoring": _restoring(trace),
    }


def _message(error: BaseException) -> str:
    """Return the message of an error, with its notes: they name the file, or the object, that it came from."""
    notes = [each for each in getattr(error, "__notes__", ()) if isinstance(each, str)]
    return f"{error} ({'; '.join(notes)})" if notes else str(error)


def _restoring(trace: TracebackType | None) -> bool:
    """Return whether loading the saved state failed: inside ``Session.restore``, and not for lack of memory there."""
    frames = [(frame.name, frame.filename) for frame in traceback.extract_tb(trace)]
    inside = any(name == "restore" and _ours(file) for name, file in frames)
    return inside and not any(name == "require_room" for name, _ in frames)


def _ours(filename: str) -> bool:
    return filename.endswith(os.path.join("holdfast", "session", "session.py"))


def _user_frame(error: BaseException, trace: TracebackType | None, root: str) -> str | None:
    """Return the deepest place in the job's code, as ``file:line in func``; None when there is none."""
    if isinstance(error, SyntaxError) and error.filename and _inside(error.filename, root):
        return f"{os.path.relpath(error.filename, root)}:{error.lineno} in <module>"
    for frame in reversed(traceback.extract_tb(trace)):
        if _inside(frame.filename, root):
            return f"{os.path.relpath(os.path.realpath(frame.filename), root)}:{frame.lineno} in {frame.name}"
    return None


def _inside(filename: str, root: str) -> bool:
    return is_own(os.path.realpath(filename), root)
