"""Prefect's server, as the gateways see it, and the processes of its runs."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.deployments.gateway.runs.flow_runs import PlaybookRun, RunPhase, Suspended, idempotency_key
from holdfast.errors import UnavailableError
from holdfast.models.alert import Incident
from holdfast.tasks.recovery_context import Request
from tests.nemesis.scheduler import Process
from tests.nemesis.services import Services

if TYPE_CHECKING:
    from tests.nemesis.site import Site


class Prefect:
    """Prefect's server, and the worker that starts a process for each run."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.away = False
        self.runs: dict[str, PlaybookRun] = {}
        self.attempts: dict[str, Process] = {}

    def set(self, key: str, phase: RunPhase, alive: bool | None = None) -> None:
        """A run entered a state."""
        now = self._site.wall("prefect")
        self.runs[key] = PlaybookRun(id=key, phase=phase, state=phase.value, since=now, alive=alive)

    def launch(self, incident: Incident, key: str) -> None:
        """Start the process."""
        site = self._site
        process = Process(site.scheduler, f"run {key}", "worker")
        ledger = site.ledger_of(process)
        process.context = Services(site, process, ledger)
        self.attempts[key] = process
        self.set(key, RunPhase.RUNNING)
        site.note("run", key=key, playbook=incident.incident_class.value)
        name = incident.incident_class.value
        flow = getattr(import_module(f"holdfast.flows.{name}"), name)

        async def run() -> None:
            try:
                await flow.fn(Request(id=incident.id, attempt=incident.attempt))
            except Exception as error:
                site.note("run-failed", key=key, error=f"{type(error).__name__}: {error}"[:150])
                self.set(key, RunPhase.FAILED)
            else:
                self.set(key, RunPhase.ENDED)
            process.kill()

        def died() -> None:
            # A worker on the same host reports it soon; one that died too never does.
            if self.runs[key].phase is RunPhase.RUNNING and site.scheduler.random.random() < 0.5:
                site.scheduler.after(1.0, lambda: self.set(key, RunPhase.FAILED))

        process.on_kill.append(died)
        process.start(run())


class Runs:
    """Prefect as one gateway sees it."""

    def __init__(self, site: Site) -> None:
        self._site, self._prefect = site, site.prefect

    async def _ask(self) -> None:
        await asyncio.sleep(0.02 * self._site.scheduler.random.random())
        if self._prefect.away:
            raise UnavailableError("Prefect's API: ConnectError")

    async def create(self, incident: Incident) -> str:
        """Once per key."""
        await self._ask()
        key = idempotency_key(incident)
        if key not in self._prefect.runs:
            self._prefect.set(key, RunPhase.WAITING)
            self._site.scheduler.after(
                0.1 + 0.3 * self._site.scheduler.random.random(), lambda: self._prefect.launch(incident, key)
            )
        return key

    async def start(self, deployment: str, parameters: dict[str, object], key: str) -> None:
        """No other deployments."""
        await self._ask()

    async def read(self, run_id: str) -> PlaybookRun | None:
        """Its state."""
        if not run_id.startswith("offline"):
            await self._ask()
        found = self._prefect.runs.get(run_id)
        if found is not None and run_id.startswith("offline"):
            process = self._prefect.attempts[run_id]
            return found.model_copy(update={"alive": process.alive})
        return found

    async def ping(self) -> tuple[str, ...]:
        """Whether it answers; it has all deployments."""
        await self._ask()
        return ()

    async def resume(self, run_id: str, answer: dict[str, object]) -> None:
        """No run is suspended."""

    async def suspended(self) -> tuple[Suspended, ...]:
        """None is."""
        return ()

    async def cancel(self, run_id: str, why: str) -> bool:
        """None is suspended."""
        return False

    async def offline(self, incident: Incident) -> str:
        """A process of its own, without Prefect."""
        key = f"offline:{idempotency_key(incident)}"
        if key not in self._prefect.runs:
            self._prefect.launch(incident, key)
        return key
