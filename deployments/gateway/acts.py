"""What the gateway has done by the playbooks' own steps: starting, holding and stopping jobs, taking machines out."""

from __future__ import annotations

import asyncio
from typing import Protocol

from holdfast.models.machine import Scope


class Acts(Protocol):
    """All of them are safe to repeat; errors are from :mod:`holdfast.errors`."""

    async def launch(self, job: str, reason: str) -> None:
        """Start the job's next epoch."""
        ...

    async def hold(self, job: str, at_step: int | None) -> None:
        """Hold all ranks at a step boundary (0: the next), or let them go (None)."""
        ...

    async def stop(self, job: str) -> None:
        """Stop the job for good and free its machines."""
        ...

    async def free(self, job: str) -> None:
        """Give the machines of an ended job back to the standby pool."""
        ...

    async def take_out(self, machine: str, reason: str, scope: Scope) -> None:
        """Evict and cordon a machine that serves no job."""
        ...

    async def release(self, machine: str) -> None:
        """Start an evicted machine anew."""
        ...


class TaskActs:
    """The real ones. Imported at first use: the steps bring Prefect along."""

    async def launch(self, job: str, reason: str) -> None:
        """Start the job's next epoch."""
        from holdfast.tasks import resume  # noqa: PLC0415

        await resume.launch(job, reason)

    async def hold(self, job: str, at_step: int | None) -> None:
        """Hold all ranks at a step boundary (0: the next), or let them go (None)."""
        from holdfast.tasks import pause  # noqa: PLC0415

        await pause.hold(job, at_step)

    async def stop(self, job: str) -> None:
        """Stop the job for good and free its machines."""
        from holdfast.tasks import pause  # noqa: PLC0415

        await pause.stop(job)

    async def free(self, job: str) -> None:
        """Give the machines of an ended job back to the standby pool."""
        from holdfast.tasks import context, pause  # noqa: PLC0415

        await pause.free_machines(context.context(), job)

    async def take_out(self, machine: str, reason: str, scope: Scope) -> None:
        """Evict and cordon a machine that serves no job."""
        from holdfast.tasks import context, evict  # noqa: PLC0415

        await evict.take_out(context.context(), machine, reason, scope)

    async def release(self, machine: str) -> None:
        """Start an evicted machine anew."""
        from holdfast.tasks import context  # noqa: PLC0415

        await asyncio.to_thread(context.context().driver.release, machine)
