"""The gateway's own acts, by the operations that playbooks use: start, hold and stop jobs, take machines out."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from holdfast.drivers.base import meant
from holdfast.errors import HoldfastError
from holdfast.models.agent import StackDump
from holdfast.models.alert import Incident
from holdfast.models.checkpoint import Choice
from holdfast.models.job import Job, JobSpec
from holdfast.models.machine import Machine, Scope
from holdfast.operations import evict, fence, head_start, hold, launch, persist, resize, start_from, stop
from holdfast.operations.context import Context


class JobActs(Protocol):
    """All of them are safe to repeat; errors are from :mod:`holdfast.errors`."""

    async def resolve(self, spec: JobSpec) -> JobSpec:
        """Return the spec with the very checkpoint that the job starts from; refuse one that is not there."""
        ...

    async def launch(self, job: str, reason: str, choice: Choice | None = None) -> None:
        """Start the job's next epoch, from what a person chose (None: the newest usable state)."""
        ...

    async def hold(self, job: str, at_step: int | None) -> None:
        """Hold all ranks at a step boundary (0: the next), or let them go (None)."""
        ...

    async def let_go_unheld(self, job: Job) -> bool:
        """Let ranks go that wait though no one holds their job; return whether they go on."""
        ...

    async def stop(self, job: str) -> None:
        """Stop the job for good and free its machines."""
        ...

    async def halt(self, job: str) -> None:
        """Stop the job's ranks and leave it to a person; its machines stay with it."""
        ...

    async def persist_last(self, job: str) -> bool:
        """Order the last step of an ended job to S3; return whether nothing is left to upload."""
        ...

    async def free(self, job: str) -> None:
        """Give the machines of an ended job back to the standby pool."""
        ...

    async def release_unplaced(self, job: str) -> None:
        """Give machines that serve a job without a slot in it back to the standby pool."""
        ...

    async def take_out(self, machine: Machine, reason: str, scope: Scope) -> None:
        """Evict and cordon a machine that no playbook works on, in the incarnation that was looked at."""
        ...

    async def release(self, machine: str, incarnation: str) -> None:
        """Restart a machine that was evicted in that incarnation; empty: whatever has its name."""
        ...

    async def stacks(self, machine: Machine, job: str, epoch: int) -> list[StackDump]:
        """Have the machine's agent take the stacks of a job's ranks now."""
        ...

    async def head_start(self, incident: Incident, *, keeps: bool) -> None:
        """Make the first acts for a new incident while its playbook's run is being started."""
        ...


def while_sure(acts: JobActs, require_sure: Callable[[], None]) -> JobActs:
    """Wrap ``acts``: each first calls ``require_sure``, which raises where another gateway may act by now."""
    return cast(JobActs, _WhileSure(acts, require_sure))


class _WhileSure:
    def __init__(self, acts: JobActs, require_sure: Callable[[], None]) -> None:
        self._acts, self._require_sure = acts, require_sure

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        act: Callable[..., Awaitable[Any]] = getattr(self._acts, name)

        @functools.wraps(act)
        async def done(*args: Any, **named: Any) -> Any:
            self._require_sure()
            return await act(*args, **named)

        return done


class Operations:
    """The real ones: :mod:`holdfast.operations`, as playbooks use them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def resolve(self, spec: JobSpec) -> JobSpec:
        """Return the spec with the very checkpoint that the job starts from; refuse one that is not there."""
        return await start_from.resolve(self._ctx, spec)

    async def launch(self, job: str, reason: str, choice: Choice | None = None) -> None:
        """Start the job's next epoch, from what a person chose (None: the newest usable state)."""
        await launch.launch(self._ctx, job, reason, choice=choice)

    async def hold(self, job: str, at_step: int | None) -> None:
        """Hold all ranks at a step boundary (0: the next), or let them go (None)."""
        await hold.hold(self._ctx, job, at_step)

    async def let_go_unheld(self, job: Job) -> bool:
        """Let ranks go that wait though no one holds their job; return whether they go on."""
        return await hold.let_go_unheld(self._ctx, job)

    async def stop(self, job: str) -> None:
        """Stop the job for good and free its machines."""
        await stop.stop(self._ctx, job)

    async def halt(self, job: str) -> None:
        """Stop the job's ranks and leave it to a person; its machines stay with it."""
        await fence.halt(self._ctx, job)

    async def persist_last(self, job: str) -> bool:
        """Order the last step of an ended job to S3; return whether nothing is left to upload."""
        return await persist.persist_last(self._ctx, job)

    async def free(self, job: str) -> None:
        """Give the machines of an ended job back to the standby pool."""
        await stop.free_machines(self._ctx, job)

    async def release_unplaced(self, job: str) -> None:
        """Give machines that serve a job without a slot in it back to the standby pool."""
        await resize.release_unplaced(self._ctx, job)

    async def take_out(self, machine: Machine, reason: str, scope: Scope) -> None:
        """Evict and cordon a machine that no playbook works on, in the incarnation that was looked at."""
        await evict.take_out(self._ctx, machine.name, reason, scope, machine.incarnation, job=machine.job)

    async def release(self, machine: str, incarnation: str) -> None:
        """Restart a machine that was evicted in that incarnation; empty: whatever has its name."""
        release = self._ctx.driver.release
        await asyncio.to_thread(release, *meant(release, machine, incarnation))

    async def stacks(self, machine: Machine, job: str, epoch: int) -> list[StackDump]:
        """Have the machine's agent take the stacks of a job's ranks now."""
        return await self._ctx.agent(machine).stacks(job, epoch)

    async def head_start(self, incident: Incident, *, keeps: bool) -> None:
        """Make the first acts for a new incident while its playbook's run is being started."""
        await head_start.head_start(self._ctx, incident, keeps=keeps)


class ApartOperations(Operations):
    """The same, with head starts in a thread of their own: no ledger that is locked keeps heartbeats waiting."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="head start", daemon=True).start()
        self._loop.call_soon_threadsafe(self._warm)

    def _warm(self) -> None:
        """Prepare what the first head start would otherwise wait for: policy, secret, and this loop's client."""
        with contextlib.suppress(HoldfastError):
            self._ctx.policy  # noqa: B018
            self._ctx.secret  # noqa: B018
            self._ctx.http  # noqa: B018

    async def head_start(self, incident: Incident, *, keeps: bool) -> None:
        """Make the first acts for a new incident while its playbook's run is being started."""
        done = asyncio.run_coroutine_threadsafe(super().head_start(incident, keeps=keeps), self._loop)
        await asyncio.wrap_future(done)
