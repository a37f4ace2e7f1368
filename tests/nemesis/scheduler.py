"""Processes, threads and time in one real thread: who runs next is drawn by a seeded generator.

Each simulated process has an asyncio loop of its own. A step is one callback of one loop, or one stretch of a thread up
to its next blocking call: threads and blocking calls are greenlets, so that production code that blocks (a ledger
transaction in a playbook, a lease renewed by a thread) is preempted there as the kernel would, and a process can be
killed or stopped in the middle of it. Time passes only when no process can run.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import greenlet

WALL = 1_700_000_000.0
"""Unix seconds at which every run begins."""
ASK_S = 0.5


class Killed(BaseException):
    """Thrown into what a dead process left behind, so that none of it acts."""


class Task(asyncio.Task[Any]):
    """Sets of tasks are walked in the order of their making, not of their addresses."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **named: Any) -> None:
        self._number = next(Task._numbers)
        super().__init__(*args, **named)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class Loop(asyncio.BaseEventLoop):
    """The event loop of one process: its callbacks run in their order, its timers in virtual time."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        self.ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        self.set_task_factory(lambda loop, coro, **named: Task(coro, loop=loop, **named))
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Virtual seconds."""
        return self.process.scheduler.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Run it then, unless it is cancelled."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.process.scheduler.at(when, lambda: None if handle.cancelled() else self.ready.append(handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Run it after ``delay``."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """In a thread of the process, which is preempted where it blocks."""
        done: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(_settle, done, None, error)
            else:
                self.call_soon(_settle, done, result, None)

        self.process.thread(work)
        return done

    def _write_to_self(self) -> None:
        """Do nothing: no thread sleeps in a selector."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left out when its time comes."""

    def _note(self, _: Any, context: dict[str, Any]) -> None:
        if not self.process.scheduler.over and self.process.alive:
            error = context.get("exception")
            self.process.scheduler.complain(f"{self.process.name}: {context.get('message')}: {error!r}")


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class Strand:
    """A thread of a process; the first one runs its event loop."""

    def __init__(self, process: Process, body: Callable[[], None], loop: Loop | None = None) -> None:
        self.process, self.loop = process, loop
        self.blocked = False
        self.inside = False
        """It is in the middle of something."""
        self.greenlet = greenlet.greenlet(body, parent=process.scheduler.hub)


class Process:
    """A process on a host: an event loop, threads, and what is kept apart for it that is global in reality."""

    def __init__(self, scheduler: Scheduler, name: str, host: str) -> None:
        self.scheduler, self.name, self.host = scheduler, name, host
        self.alive, self.stopped = True, False
        self.context: Any = None
        """The value of :func:`holdfast.tasks.context.context` in it."""
        self.run_id = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_kill: list[Callable[[], None]] = []
        self.loop = Loop(self)
        self.strands = [Strand(self, self._serve, self.loop)]
        scheduler.processes.append(self)

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``main`` on its loop."""
        task = self.loop.create_task(main)
        self._tasks.add(task)
        task.add_done_callback(self._failed)
        return task

    def _failed(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self.scheduler.over:
            self.scheduler.complain(f"{self.name}: {type(error).__name__}: {error}")

    def thread(self, body: Callable[[], None]) -> None:
        """Start a thread."""
        self.strands.append(Strand(self, body))

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, nothing is cleaned up."""
        if self.alive:
            self.alive = False
            self.scheduler.processes.remove(self)
            self.scheduler.dead.append(self)
            for callback in self.on_kill:
                callback()

    def _serve(self) -> None:
        while True:
            handle = self.loop.ready.popleft()
            if not handle.cancelled():
                handle._run()
            self.scheduler.hub.switch()


class Scheduler:
    """Draws who runs, moves time."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(f"schedule {seed}")
        self.now = 0.0
        self.processes: list[Process] = []
        self.dead: list[Process] = []
        self.current: Process | None = None
        self.over = False
        self.complaints: list[str] = []
        self.steps = 0
        self.entered: Callable[[Process], None] = lambda _: None
        """Called with the process that runs next."""
        self.hub = greenlet.getcurrent()
        self._strand: Strand | None = None
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, what: Callable[[], Any]) -> None:
        """Have ``what`` happen at a time, outside of all processes."""
        heapq.heappush(self._timers, (max(when, self.now), next(self._numbers), what))

    def after(self, seconds: float, what: Callable[[], Any]) -> None:
        """The same, from now."""
        self.at(self.now + seconds, what)

    def block(self, seconds: float) -> None:
        """The thread that runs waits in the kernel; others run meanwhile."""
        strand = self._strand
        if strand is None:
            return
        if self.over:
            raise Killed
        strand.blocked = strand.inside = True
        self.after(seconds, lambda: setattr(strand, "blocked", False))
        self.hub.switch()
        strand.inside = False

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Run until ``until``, asked now and then, is true; False when ``limit_s`` came first."""
        asked_at = self.now
        while self.now < limit_s:
            if self.now - asked_at >= ASK_S:
                asked_at = self.now
                if until():
                    return True
            self._advance(limit_s)
            while strands := [
                strand
                for process in self.processes
                if not process.stopped
                for strand in process.strands
                # It has something to do now. A hundred thousand times in a run: no call.
                if not strand.blocked and (strand.inside or strand.loop is None or strand.loop.ready)
            ]:
                self._switch(strands[int(self.random.random() * len(strands))])
        return until()

    def end(self) -> None:
        """Close what is left of all processes; none of it acts any more."""
        self.over = True
        for process in [*self.processes, *self.dead]:
            process.loop.ready.clear()
            for strand in process.strands:
                if strand.greenlet and not strand.greenlet.dead:
                    self._strand, self.current = strand, process
                    with contextlib.suppress(BaseException):
                        strand.greenlet.throw(greenlet.GreenletExit)
            process.loop.close()
        self._strand = self.current = None
        self._timers.clear()

    def complain(self, what: str) -> None:
        """Note an error that production code did not handle."""
        self.complaints.append(f"{self.now:.2f} {what}")

    def _advance(self, limit_s: float) -> None:
        if not self._timers:
            self.now = limit_s
            return
        self.now = max(self.now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    def _switch(self, strand: Strand) -> None:
        process = strand.process
        self.steps += 1
        self._strand, self.current = strand, process
        events._set_running_loop(strand.loop)
        self.entered(process)
        try:
            strand.greenlet.switch()
        finally:
            events._set_running_loop(None)
            self._strand = self.current = None
        if strand.greenlet.dead and strand in process.strands:
            process.strands.remove(strand)
