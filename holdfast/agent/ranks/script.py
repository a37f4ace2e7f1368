"""The user's script in a rank's process: run, and ended, as ``python SCRIPT`` would."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import Any

_ENDED_BY_KNOWN_CALLS = ("concurrent.futures.", "holdfast.")
"""Modules whose threads end when Python ends its threads, and are known, or are daemons."""
_KEPT = frozenset({"holdfast", "torch", "numpy"})
"""Not to be had twice in a process."""
_OF_PYTHON = frozenset(
    {"abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat", "zipimport"}
)
"""Python has loaded these before it looks for a script."""


def forget_shadowed(folder: Path) -> None:
    """Forget modules, loaded in advance, of whose names ``folder`` has its own: these come first under ``python``."""
    there = set(os.listdir(folder))
    for name, known in list(sys.modules.items()):
        own = f"{name}.py" in there or (name in there and (folder / name / "__init__.py").exists())
        # What has no file is part of Python, and found before any folder.
        if not own or name in _KEPT | _OF_PYTHON or not getattr(known, "__file__", None):
            continue
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[loaded]


def run(path: str) -> None:
    """Run the script at ``path`` as ``__main__``, which it stays until the process ends: threads may outlive it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def report(error: BaseException, trace: TracebackType | None) -> None:
    """Hand an uncaught exception to ``sys.excepthook``, which may be the script's own."""
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except Exception as of_hook:
        sys.__excepthook__(type(of_hook), of_hook, of_hook.__traceback__)  # with the script's, as its context


def status(end: SystemExit) -> int:
    """Return the exit status that Python makes of it."""
    if end.code is None:
        return 0
    return end.code if isinstance(end.code, int) else 1


def finish(exit_status: int) -> None:
    """Wait for the script's threads, then call its exit functions, which the end of a forked process skips.

    After a failure no thread is waited for: it may run without end, and the recovery begins when the rank is gone.
    """
    while not exit_status and (waits := _to_wait_for()):
        waits[0]()
    atexit._run_exitfuncs()
    if exit_status and _to_wait_for():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(
                AttributeError, OSError, ValueError
            ):  # the script's own, closed, or None
                stream.flush()
        os._exit(exit_status)


def without_runner(trace: TracebackType | None, runner: str) -> TracebackType | None:
    """Return the traceback without the frames that run the script: of the file ``runner`` and of this one."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (runner, __file__):
        trace = trace.tb_next
    return trace


def _to_wait_for() -> list[Callable[[], object]]:
    """Return what waits for each thread that runs: the script's own, then pools, which do what was submitted.

    Pools are closed one by one: Python's order to all of them to end would be heard by those that a restore makes
    meanwhile, too. None where other libraries have threads that are ordered to end only when Python ends.
    """
    calls = threading._threading_atexits  # type: ignore[attr-defined]
    if not all(getattr(call.func, "__module__", "").startswith(_ENDED_BY_KNOWN_CALLS) for call in calls):
        return []
    pooled = [*_threads_of("thread", "_threads_queues")]
    left = {threading.current_thread(), *pooled, *_threads_of("process", "_threads_wakeups")}
    own = [each.join for each in threading.enumerate() if not each.daemon and each not in left]
    return [*own, *(_close(each) for each in pooled if each.is_alive())]


def _threads_of(kind: str, name: str) -> Iterable[Any]:
    """Return the threads of one kind of pools of ``concurrent.futures``."""
    threads: Iterable[Any] = getattr(sys.modules.get(f"concurrent.futures.{kind}"), name, ())
    return threads


def _close(worker: Any) -> Callable[[], object]:
    """Return what closes the pool of a thread, or waits for the thread, where the pool itself is gone."""
    held = getattr(worker, "_args", None)  # not of one that ends just now
    pool = held[0]() if held else None
    close: Callable[[], object] = worker.join if pool is None else pool.shutdown
    return close
