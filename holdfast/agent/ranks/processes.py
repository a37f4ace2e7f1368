"""Rank processes: start them, watch for their end, and end them with all that they started."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import signal
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess

from holdfast.agent.ranks import proc, trackers
from holdfast.errors import DyingError, UndyingError

_GONE_S = 8.0
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_CHILDREN = 64


class Watched:
    """A forked process and the moment it ends. Made and used on the event loop."""

    def __init__(
        self, process: ForkServerProcess, rank: int, on_exit: Callable[[Watched], None] | None = None
    ) -> None:
        self.rank = rank
        self.pid = int(process.pid or 0)
        self.family = {self.pid}
        """Pids of the process and of what it had started when it was ended or died."""
        self.expected = False
        """The agent ended it: no alert."""
        self.ordered = False
        """The agent had it end, while it still lived: its status is not that of its work."""
        self.exit_code: int | None = None
        self._process = process
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = _open_pidfd(self.pid)
        known = proc.look(self.pid)
        self._adopter = known.parent if known else 0
        # The fork server writes the status here after it reaped the process: only then it is really gone.
        self._loop.add_reader(process.sentinel, self._ended)

    def expect(self) -> None:
        """Take its end for ordered from now on, unless it has ended by itself already: that is known a little later."""
        if not self._has_ended():
            self.expected = True

    def _has_ended(self) -> bool:
        """Return whether it is dead, though the fork server may not have reaped it yet."""
        if self._pidfd is None:
            return True
        looks = select.poll()
        looks.register(self._pidfd, select.POLLIN)
        return bool(looks.poll(0))

    def kill(self) -> None:
        """SIGKILL the process and its group, unless it is gone; by descriptor, so that a reused pid is never hit."""
        if self.gone.done():
            return  # its group was killed with it; by now the number may be another's
        self.expect()
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._kill_group()

    def terminate(self) -> bool:
        """Send SIGTERM, if the process has a handler for it that can run; return whether it was sent."""
        self.expect()
        if self._pidfd is None or not proc.handles(self.pid, signal.SIGTERM):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        return True

    def watch(self, on_exit: Callable[[Watched], None] | None) -> None:
        """Report its end to ``on_exit`` from now on; None: it is expected."""
        self.expected = on_exit is None
        self._on_exit = on_exit

    def usage(self) -> tuple[float, str]:
        """Return seconds of processors used, or waited for, and the state letter of /proc; ``(0, "")`` once gone.

        A rank that computes on a host without a free processor uses little, but is not idle.
        """
        _, fields = proc.stat(self.pid)
        return (_cpu_s(fields) + proc.waited_s(self.pid), fields[0].decode()) if fields else (0.0, "")

    def work(self) -> tuple[float, int]:
        """Return processor seconds, used or waited for, of all that it started, and bytes that they and it moved."""
        _, own = proc.stat(self.pid)
        children = [child.pid for child in proc.descendants([self.pid])[:_MOST_CHILDREN]]
        waited_for = (int(own[13]) + int(own[14])) / _TICKS if own else 0.0
        cpu_s = waited_for + sum(_cpu_s(proc.stat(pid)[1]) + proc.waited_s(pid) for pid in children)
        return cpu_s, sum(_moved(pid) for pid in (self.pid, *children))

    def _ended(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self.exit_code = self._process.exitcode
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        # Data loader workers that it left behind: children of the fork server by now.
        self.family |= {pid for pid in proc.children(self._adopter) if self._in_group(pid)}
        self._kill_group()
        if not self.gone.done():
            self.gone.set_result(self.exit_code if self.exit_code is not None else -signal.SIGKILL)
        if self._on_exit is not None and not self.expected:
            self._on_exit(self)

    def _in_group(self, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            return os.getpgid(pid) == self.pid
        return False

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


async def stop(processes: Sequence[Watched], grace_s: float = 0.0) -> list[int]:
    """End processes with all their descendants and wait until they are gone; return the ranks stopped.

    Those that handle SIGTERM get that and ``grace_s`` seconds first; all others, and those left then, get SIGKILL.

    Raises:
        UndyingError: one does not die, stuck in the kernel; its machine should be evicted.
        DyingError: one has not died yet, and is not stuck.
    """
    alive = [process for process in processes if not process.gone.done()]
    for process in alive:
        process.expect()
        process.ordered = process.expected
    await _ask_to_end(alive, grace_s)
    await _kill([process for process in alive if not process.gone.done()])
    return sorted(process.rank for process in alive)


async def _ask_to_end(alive: Sequence[Watched], grace_s: float) -> None:
    asked = [process for process in alive if grace_s and process.terminate()]
    if asked:
        await asyncio.wait([process.gone for process in asked], timeout=grace_s)


async def _kill(alive: Sequence[Watched]) -> None:
    if not alive:
        return
    families = await asyncio.to_thread(lambda: [proc.descendants([process.pid]) for process in alive])
    for process, family in zip(alive, families, strict=True):
        process.family |= {descendant.pid for descendant in family}
        process.kill()
    for descendant in itertools.chain.from_iterable(families):
        if not trackers.tidies(proc.command(descendant.pid)):
            descendant.send(signal.SIGKILL)
    await until_gone(alive)


async def until_gone(killed: Sequence[Watched]) -> None:
    """Wait until killed processes are gone.

    Raises:
        UndyingError: one does not die, stuck in the kernel; its machine should be evicted.
        DyingError: one has not died yet, and is not stuck.
    """
    await asyncio.wait([process.gone for process in killed], timeout=_GONE_S)
    if not (left := [process for process in killed if not process.gone.done()]):
        return
    text = f"ranks (rank, pid) {[(process.rank, process.pid) for process in left]} did not die within {_GONE_S:.0f} s"
    if any(proc.is_stuck(process.pid) for process in left):
        raise UndyingError(f"{text} of SIGKILL, stuck in the kernel: evict the machine.")
    raise DyingError(f"{text} of SIGKILL, and are not stuck: the machine has no free processor for them.")


def _cpu_s(fields: Sequence[bytes]) -> float:
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def _moved(pid: int) -> int:
    """Return bytes that it read and wrote by any call, cached or not; 0 where that may not be read."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            counters = dict(line.split(":") for line in file)
    except (OSError, ValueError):
        return 0
    return int(counters.get("rchar", 0)) + int(counters.get("wchar", 0))


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # ended and reaped already
        return None
