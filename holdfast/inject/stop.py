"""Processes stop for a while (SIGSTOP) and go on: a rank, a machine's agent, a service. Slow, not dead."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil

from holdfast.drivers import processes
from holdfast.errors import RefusedError
from holdfast.inject.target import Target


@dataclass(frozen=True)
class Stopped:
    """Processes that were stopped, to be continued later."""

    processes: tuple[psutil.Process, ...]
    rank: int | None = None

    def go_on(self) -> None:
        """Continue the processes (SIGCONT); harmless for those that ended meanwhile."""
        for process in self.processes:
            with contextlib.suppress(psutil.Error):
                process.resume()  # psutil checks that the pid was not reused


def stop(*victims: psutil.Process, rank: int | None = None) -> Stopped:
    """Stop processes (SIGSTOP)."""
    for process in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    return Stopped(victims, rank)


def stop_rank(target: Target, rank: int | None) -> Stopped:
    """Stop a rank's process, as one that waits for a disk."""
    chosen, pid = target.rank(rank)
    return stop(psutil.Process(pid), rank=chosen)


def stop_agent(target: Target, rank: int | None) -> Stopped:
    """Stop the machine's agent alone: its ranks go on."""
    return stop(agent_of(target))


def agent_of(target: Target) -> psutil.Process:
    """Return the machine's agent.

    Raises:
        RefusedError: it is not there.
    """
    found = processes.find_agent(target.folder)
    if found is None:
        raise RefusedError(f"machine {target.machine} has no agent: nothing to break.")
    return found
