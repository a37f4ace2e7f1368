"""State that all parts of the gateway share, made once by :func:`~holdfast.deployments.gateway.app.create_app`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import Clock
from holdfast.deployments.gateway.fleet.view import OUT_OF_SERVICE, Fleet
from holdfast.deployments.gateway.metrics import Metrics
from holdfast.models.job import Job
from holdfast.models.machine import Machine
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect import silence
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger

log = logging.getLogger("holdfast.gateway")


@dataclass
class Site:
    """Services of one gateway. Ledger calls block: they go through :func:`asyncio.to_thread`."""

    settings: Settings
    ledger: Ledger
    clock: Clock
    policy: Policy
    fleet: Fleet
    metrics: Metrics
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    listening_since: float = 0.0
    """When this gateway started or took over."""
    acts: int = 0
    """Number of acts by hand: views made before them are out of date for the people who acted."""
    accounts: dict[str, tuple[tuple[float, float | None], dict[str, Any]]] = field(default_factory=dict)
    """Time of jobs whose account is complete: when they were submitted and ended, and the account."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Do ``work`` in the background; an error in it is logged, never lost."""
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    async def drain(self) -> None:
        """Wait until nothing is going on in the background (tests, shutdown)."""
        while self.tasks:
            await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def window_s(self) -> float:
        """Silence of a machine that calls for a probe."""
        return silence.window_s(self.settings.heartbeat_s, self.policy.gateway)

    @property
    def lease_s(self) -> float:
        """Silence after which a machine is given up that does not refuse a connection: the least for all of them."""
        return silence.lease_s(self.settings.heartbeat_s, self.policy.gateway)

    def lease_of(self, machine: Machine) -> float:
        """Return the silence after which this machine is given up: it may have been granted a longer lease."""
        return max(self.lease_s, machine.lease_s)

    def silent(self, machines: Iterable[str]) -> frozenset[str]:
        """Return those of ``machines`` whose heartbeat is overdue."""
        now = self.clock.now()
        return frozenset(name for name in machines if self.fleet.silent_s(name, now) > self.window_s)

    def late_s(self, machine: Machine) -> float | None:
        """Return for how long a machine in service has been silent, once that exceeds about a heartbeat interval."""
        if machine.state in OUT_OF_SERVICE or not self.fleet.last_seen(machine.name):
            return None
        silent_s = self.fleet.silent_s(machine.name, self.clock.now())
        return round(silent_s, 1) if silent_s > self.window_s else None

    async def job(self, name: str) -> Job:
        """Return the job as the ledger has it now.

        Raises:
            UnknownError: there is none.
        """
        job = await asyncio.to_thread(self.ledger.job, name)
        self.fleet.jobs[name] = job
        return job

    async def machine(self, name: str) -> Machine:
        """Return the machine as the ledger has it now.

        Raises:
            UnknownError: there is none.
        """
        machine = await asyncio.to_thread(self.ledger.machine, name)
        self.fleet.machines[name] = machine
        return machine

    async def refresh(self) -> None:
        """Read machines and jobs again: playbooks change them in the ledger, not here."""
        machines, jobs = await asyncio.gather(
            asyncio.to_thread(self.ledger.machines), asyncio.to_thread(self.ledger.jobs)
        )
        self.fleet.load(machines, jobs)

    def skipped_steps(self, job: Job) -> list[int]:
        """Return the steps whose data the job skips, since it failed at them again and again."""
        return list(self.ledger.skipped_steps(job.name)) if job.spec.skip_bad_batches else []

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("background task %s failed", task.get_name(), exc_info=error)
