"""Flow runs, behind a Protocol: Prefect's API, and playbooks without it."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Protocol

from holdfast.models.alert import Incident
from holdfast.models.base import Frozen


class RunPhase(StrEnum):
    """A run's state as far as the reconciler cares."""

    WAITING = "waiting"  # scheduled or pending: no worker has started it
    RUNNING = "running"
    SUSPENDED = "suspended"  # paused or suspended: waits for a person
    ENDED = "ended"  # completed
    FAILED = "failed"  # failed, crashed, cancelled


class PlaybookRun(Frozen):
    """One flow run."""

    id: str
    phase: RunPhase
    state: str
    """The state's own name, for reasons that people read."""
    since: float
    """When it entered the state, or was to start if that is later (Unix seconds); 0.0: not known."""
    alive: bool | None = None
    """Whether its process is alive; None when that cannot be seen from here."""
    resumable_s: float | None = None
    """How long after ``since`` Prefect lets a suspended run go on; None: without a limit."""
    message: str = ""
    """The message of the state, such as the error that ended the run."""
    raised: bool = False
    """It failed by an error, of its flow or while this was loaded; it was not cancelled, and did not die."""


class Suspended(Frozen):
    """A playbook's run that waits for a person's answer."""

    id: str
    incident: str = ""
    """The incident that it was started for; empty: a person started it, for ``job``."""
    job: str = ""


class Runs(Protocol):
    """Where playbooks run."""

    async def create(self, incident: Incident) -> str:
        """Create the run of the incident's attempt, or find it (same idempotency key); returns its id.

        Raises:
            NoPlaybookError: Prefect has no deployment of the playbook.
            UnavailableError: Prefect did not answer.
        """
        ...

    async def start(self, deployment: str, parameters: dict[str, object], key: str) -> None:
        """Start a run of a deployment that is no incident's playbook; one run per ``key``.

        Raises:
            UnavailableError: Prefect did not answer, or has no such deployment yet.
        """
        ...

    async def read(self, run_id: str) -> PlaybookRun | None:
        """Return the run, or None when there is none of that id.

        Raises:
            UnavailableError: Prefect did not answer.
        """
        ...

    async def ping(self) -> Collection[str]:
        """Ask whether Prefect works, and learn what :meth:`create` will need; deployments of playbooks that it lacks.

        Raises:
            UnavailableError: it does not answer.
        """
        ...

    async def resume(self, run_id: str, answer: dict[str, object]) -> None:
        """Resume a suspended run with the input that it waits for; one that is not suspended is left alone.

        Raises:
            UnavailableError: Prefect did not answer, or does not take the input.
        """
        ...

    async def suspended(self) -> Collection[Suspended]:
        """Return the playbooks' runs that wait for a person's answer.

        Raises:
            UnavailableError: Prefect did not answer.
        """
        ...

    async def cancel(self, run_id: str, why: str) -> bool:
        """Cancel a run that is suspended; return whether it was: one that is gone, or goes on, is left alone.

        Raises:
            UnavailableError: Prefect did not answer.
        """
        ...

    async def offline(self, incident: Incident) -> str:
        """Run the playbook of the incident's attempt without Prefect's server; returns an id for :meth:`read`."""
        ...


def idempotency_key(incident: Incident) -> str:
    """Return the run's idempotency key; Prefect binds it for ever, also to a cancelled run, so it has the attempt."""
    return f"{incident.id}#{incident.attempt}"


def parameters(incident: Incident) -> dict[str, object]:
    """Return the parameters of the incident's playbook."""
    return {"incident": {"id": incident.id, "attempt": incident.attempt}}


def run_name(incident: Incident) -> str:
    """Return the run's name in the Prefect UI."""
    where = f" on {incident.machine}" if incident.machine else ""
    again = f" (attempt {incident.attempt})" if incident.attempt > 1 else ""
    return f"{incident.id}: {incident.incident_class.replace('_', ' ')}{where}{again}"
