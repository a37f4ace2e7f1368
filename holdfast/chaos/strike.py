"""Carry out a plan on a real site, from outside: signals and locks, nothing that Holdfast does to itself."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from holdfast.chaos.fault_plan import DATABASE, MACHINES, RANKS, REPLICAS, SERVICES
from holdfast.errors import HoldfastError, RefusedError
from holdfast.inject import registry, service
from holdfast.inject.target import Target
from holdfast.models.base import Frozen
from holdfast.models.job import Job
from holdfast.settings import Settings


class Hit(Frozen):
    """The result of one fault of a strike."""

    fault: str
    at: float
    """Unix seconds, just before it."""
    fired: bool
    where: str = ""
    """Machine and rank, or service."""
    machine: str | None = None
    why: str = ""
    """Why it did not fire."""


class Undo(Protocol):
    """Something stopped or locked."""

    def go_on(self) -> None:
        """Let it go on; may be called again."""
        ...


class Striker:
    """Strikes one site and one job. Use as a context manager: stopped processes go on at the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timers: list[tuple[threading.Timer, Undo]] = []

    def __enter__(self) -> Striker:
        return self

    def __exit__(self, *_: object) -> None:
        for timer, stopped in self._timers:
            timer.cancel()
            stopped.go_on()

    def strike(self, fault: str, job: Job, slot: int, local_rank: int, hold_s: float) -> Hit:
        """Inject one fault; one that finds nothing to break is reported in the result, not raised."""
        at = time.time()
        try:
            where, machine = self._do(fault, job, slot, local_rank, hold_s)
        except (HoldfastError, OSError) as error:
            return Hit(fault=fault, at=at, fired=False, why=str(error))
        return Hit(fault=fault, at=at, fired=True, where=where, machine=machine)

    def _do(self, fault: str, job: Job, slot: int, local_rank: int, hold_s: float) -> tuple[str, str | None]:
        if fault in REPLICAS:
            return self._on_replica(fault, job, slot)
        if fault in (*RANKS, *MACHINES):
            return self._on_machine(fault, job, slot, local_rank, hold_s)
        if fault == DATABASE:
            self._hold(service.lock_database(self._settings), hold_s)
            return f"ledger, {hold_s:.1f} s", None
        assert fault in SERVICES
        verb, _, name = fault.partition("-")
        if verb == "kill":
            service.kill(self._settings, name)
            return name, None
        self._hold(service.pause(self._settings, name), hold_s)
        return f"{name}, {hold_s:.1f} s", None

    def _on_replica(self, fault: str, job: Job, slot: int) -> tuple[str, None]:
        """Hit the machine in this slot, or the next one with a replica of the job: they move from one to another."""
        for number in range(len(job.machines)):
            target = Target(self._settings.home, job.machines[(slot + number) % len(job.machines)])
            mine = [each for each in target.replicas() if each.job == job.name]
            if mine:
                registry.FAULTS[fault](target, None)
                # No machine is named: none may be evicted for it.
                return f"{target.machine}, {mine[0].role} {mine[0].index}", None
        raise RefusedError(f"no replica of job {job.name!r} runs at the moment")

    def _on_machine(
        self, fault: str, job: Job, slot: int, local_rank: int, hold_s: float
    ) -> tuple[str, str | None]:
        if slot >= len(job.machines):
            raise RefusedError(f"job {job.name!r} has no machine in slot {slot} at the moment")
        machine = job.machines[slot]
        target = Target(self._settings.home, machine)
        if (found := target.job()) != job.name:
            raise RefusedError(f"machine {machine} runs job {found!r}, which was not named")
        rank = slot * job.spec.ranks_per_machine + local_rank if fault in RANKS else None
        where = machine if rank is None else f"{machine}, rank {rank}"
        if fault in registry.STOPS:
            self._hold(registry.STOPS[fault](target, rank), hold_s)
            return f"{where}, {hold_s:.1f} s", machine
        registry.FAULTS[fault](target, rank)
        return where, machine

    def _hold(self, stopped: Undo, hold_s: float) -> None:
        timer = threading.Timer(hold_s, stopped.go_on)
        timer.daemon = True
        timer.start()
        self._timers.append((timer, stopped))
