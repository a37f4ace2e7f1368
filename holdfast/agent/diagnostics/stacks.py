"""Stacks of rank processes and their children, taken from outside with py-spy.

A stopped process (state ``T``) cannot be suspended by py-spy: it is read as it stands, and its state is
evidence by itself. Every process is dumped in bounded time; one that cannot be read yields its state and why.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.commands import Ended, run
from holdfast.models.agent import Frame, StackDump

TIMEOUT_S = 5.0
_AT_ONCE = 4
_KEPT = 16 << 20
"""Bytes: the answer is one document, of all threads."""
_MAX_FRAMES = 64
_MAX_CHILDREN = 64
_MAIN = "MainThread"
_SOURCE_S = 2.0
_SOURCE_KEPT = 200
_hanging: set[asyncio.Task[Ended]] = set()
_LETTERS = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_IDLE: "I",
}


@dataclass(frozen=True)
class _Target:
    rank: int
    pid: int
    child: bool
    state: str


async def dump(machine: str, ranks: Mapping[int, int], *, timeout_s: float = TIMEOUT_S) -> list[StackDump]:
    """Return one :class:`StackDump` per thread of every process in ``ranks`` (rank -> pid) and of its children.

    Frames are innermost first, their files without the part that differs between machines. Never raises for a
    process: one that is gone or cannot be read is a dump with ``error`` and no frames. ``timeout_s`` bounds
    each process.
    """
    targets = [target for rank, pid in sorted(ranks.items()) for target in _targets(rank, pid)]
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(target: _Target) -> list[StackDump]:
        async with turn:
            return await _dump(machine, target, timeout_s)

    return [each for dumps in await asyncio.gather(*map(one, targets)) for each in dumps]


def of_main_thread(stack: StackDump) -> bool:
    """Return whether it is of a rank's own main thread, or stands for it where none could be taken."""
    return not stack.child and (stack.thread == _MAIN or not stack.frames)


def _targets(rank: int, pid: int) -> Iterable[_Target]:
    yield _Target(rank, pid, child=False, state=_state(pid))
    try:
        children = psutil.Process(pid).children(recursive=True)[:_MAX_CHILDREN]
    except psutil.Error:
        return
    for child in children:
        yield _Target(rank, child.pid, child=True, state=_state(child.pid))


def _state(pid: int) -> str:
    try:
        return _LETTERS.get(psutil.Process(pid).status(), "?")
    except psutil.Error:
        return ""


async def _dump(machine: str, target: _Target, timeout_s: float) -> list[StackDump]:
    if not target.state:
        return [_empty(machine, target, "no such process: it ended before its stack was taken")]
    options = ["--nonblocking"] if target.state in "Tt" else []
    try:
        threads = await _py_spy(["dump", "--json", *options, "--pid", str(target.pid)], timeout_s)
    except (OSError, ValueError, TimeoutError) as error:
        return [_empty(machine, target, _explain(error, timeout_s))]
    sources = {} if target.child else await _sources(target.pid, threads)
    return [
        _thread(machine, target, thread, sources.get(number, "")) for number, thread in enumerate(threads)
    ]


async def _sources(pid: int, threads: list[dict[str, Any]]) -> dict[int, str]:
    """Return the line at which a main thread is, by the thread's place; nothing where its file cannot be read.

    In processes of their own, as a mount may not answer: one that hangs is left, and no other is started beside it.
    """
    found: dict[int, str] = {}
    for number, thread in enumerate(threads):
        inner = next(iter(thread.get("frames", [])), None)
        if inner is None or thread.get("thread_name") != _MAIN or not inner.get("line"):
            continue
        name = str(inner.get("filename") or "")
        path = f"/proc/{pid}/root{name}" if name.startswith("/") else f"/proc/{pid}/cwd/{name}"
        if any(not each.done() for each in _hanging):
            break
        _hanging.clear()
        command = ["sed", "-n", f"{int(inner['line'])}{{p;q}}", path]
        reading = asyncio.create_task(run(command, _SOURCE_S, kept=_SOURCE_KEPT))
        # Longer than its own time: a process that can be ended has ended by then.
        await asyncio.wait({reading}, timeout=2 * _SOURCE_S)
        if not reading.done():
            _hanging.add(reading)
        elif reading.result().ok:
            found[number] = reading.result().out.strip()
    return found


async def _py_spy(arguments: list[str], timeout_s: float) -> list[dict[str, Any]]:
    ended = await run([_program(), *arguments], timeout_s, kept=_KEPT)
    if ended.status is None:
        raise TimeoutError
    if ended.missing:
        raise FileNotFoundError(ended.err)
    if not ended.ok:
        raise ValueError(_reason(ended.err))
    threads: list[dict[str, Any]] = json.loads(ended.out)
    return threads


def _program() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def _reason(stderr: str) -> str:
    """Return py-spy's error message, without its own backtrace."""
    lines = [line.strip() for line in stderr.partition("Stack backtrace:")[0].splitlines()]
    return " ".join(line for line in lines if line and line != "Caused by:")[:500]


def _explain(error: Exception, timeout_s: float) -> str:
    if isinstance(error, FileNotFoundError):
        return "py-spy is not installed beside this Python: pip install py-spy"
    if isinstance(error, TimeoutError):
        return f"py-spy did not answer within {timeout_s:g} s"
    text = str(error)
    if "ermission" in text or "not permitted" in text:
        return f"py-spy may not trace the process: run the agent as root or with CAP_SYS_PTRACE ({text})"
    return f"py-spy: {text}"


def _empty(machine: str, target: _Target, error: str) -> StackDump:
    return StackDump(
        machine=machine,
        rank=target.rank,
        pid=target.pid,
        process_state=target.state,
        child=target.child,
        error=error,
    )


def _thread(machine: str, target: _Target, thread: dict[str, Any], source: str) -> StackDump:
    frames = tuple(
        Frame(
            function=frame["name"],
            file=frame.get("short_filename") or frame.get("filename") or "?",
            line=frame.get("line") or 0,
            source=source if place == 0 else "",
        )
        for place, frame in enumerate(thread.get("frames", [])[:_MAX_FRAMES])
    )
    return StackDump(
        machine=machine,
        rank=target.rank,
        pid=target.pid,
        thread=thread.get("thread_name") or f"thread {thread.get('os_thread_id')}",
        process_state=target.state,
        child=target.child,
        frames=frames,
    )
