"""What the gateway has done by the playbooks' own steps: starting, holding and stopping jobs, taking machines out."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from holdfast.models.agent import StackDump
from holdfast.models.checkpoint import Choice
from holdfast.models.machine import Machine, Scope


class Acts(Protocol):
    """All of them are safe to repeat; errors are from :mod:`holdfast.errors`."""

    async def launch(self, job: str, reason: str, choice: Choice | None = None) -> None:
        """Start the job's next epoch, from what a person chose (None: the newest usable state)."""
        ...

    async def hold(self, job: str, at_step: int | None) -> None:
        """Hold all ranks at a step boundary (0: the next), or let them go (None)."""
        ...

    async def stop(self, job: str) -> None:
        """Stop the job for good and free its machines."""
        ...

    async def halt(self, job: str) -> None:
        """Stop the job's ranks and leave it to a person; its machines stay with it."""
        ...

    async def free(self, job: str) -> None:
        """Give the machines of an ended job back to the standby pool."""
        ...

    async def take_out(self, machine: Machine, reason: str, scope: Scope) -> None:
        """Evict and cordon a machine that serves no job, in the incarnation that was looked at."""
        ...

    async def release(self, machine: str) -> None:
        """Start an evicted machine anew."""
        ...

    async def stacks(self, machine: Machine, job: str, epoch: int) -> list[StackDump]:
        """Have the machine's agent take the stacks of a job's ranks now."""
        ...


def while_sure(acts: Acts, require_sure: Callable[[], None]) -> Acts:
    """As ``acts``, but ``require_sure`` has its say before each: it raises where another gateway may act by now."""
    return cast(Acts, _WhileSure(acts, require_sure))


class _WhileSure:
    def __init__(self, acts: Acts, require_sure: Callable[[], None]) -> None:
        self._acts, self._require_sure = acts, require_sure

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        act: Callable[..., Awaitable[Any]] = getattr(self._acts, name)

        @functools.wraps(act)
        async def done(*args: Any, **named: Any) -> Any:
            self._require_sure()
            return await act(*args, **named)

        return done


class TaskActs:
    """The real ones. Imported at first use: the steps bring Prefect along."""

    async def launch(self, job: str, reason: str, choice: Choice | None = None) -> None:
        """Start the job's next epoch, from what a person chose (None: the newest usable state)."""
        from holdfast.tasks import resume  # noqa: PLC0415

        await resume.launch(job, reason, choice=choice)

    async def hold(self, job: str, at_step: int | None) -> None:
        """Hold all ranks at a step boundary (0: the next), or let them go (None)."""
        from holdfast.tasks import pause  # noqa: PLC0415

        await pause.hold(job, at_step)

    async def stop(self, job: str) -> None:
        """Stop the job for good and free its machines."""
        from holdfast.tasks import pause  # noqa: PLC0415

        await pause.stop(job)

    async def halt(self, job: str) -> None:
        """Stop the job's ranks and leave it to a person; its machines stay with it."""
        from holdfast.tasks import context, pause  # noqa: PLC0415

        await pause.halt(context.context(), job)

    async def free(self, job: str) -> None:
        """Give the machines of an ended job back to the standby pool."""
        from holdfast.tasks import context, pause  # noqa: PLC0415

        await pause.free_machines(context.context(), job)

    async def take_out(self, machine: Machine, reason: str, scope: Scope) -> None:
        """Evict and cordon a machine that serves no job, in the incarnation that was looked at."""
        from holdfast.tasks import context, pause  # noqa: PLC0415

        await pause.take_out(context.context(), machine.name, reason, scope, machine.incarnation)

    async def release(self, machine: str) -> None:
        """Start an evicted machine anew."""
        from holdfast.tasks import context  # noqa: PLC0415

        await asyncio.to_thread(context.context().driver.release, machine)

    async def stacks(self, machine: Machine, job: str, epoch: int) -> list[StackDump]:
        """Have the machine's agent take the stacks of a job's ranks now."""
        from holdfast.tasks import context  # noqa: PLC0415

        return await context.context().agent(machine).stacks(job, epoch)
