"""A Prefect worker type, ``holdfast``: the pool is polled as by any worker, a poke starts a run at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import anyio.abc
import httpx
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from holdfast import process_name
from holdfast.deployments.worker import states
from holdfast.deployments.worker.run_process import CANCEL
from holdfast.deployments.worker.warm import WarmPool, WarmProcess
from holdfast.deployments.worker.warm_orders import DeploymentCache
from holdfast.errors import RefusedError

POLL_S = 2.0
"""Interval between two polls of the pool; a poked run does not wait for it."""
DEPLOYMENTS_S = 10.0
"""Interval between two reads of the deployments: for so long a changed one may run as it was."""
CANCEL_POLL_S = 1.0
"""Interval between two reads of the states of the runs under way."""
CANCEL_GRACE_S = 10.0
"""A run that was cancelled is killed after this long."""
STOP_GRACE_S = 4.0
"""The same when the worker itself is asked to stop; with the report it stays below the supervisor's patience."""
REPORT_S = 30.0
"""How long the end of a run is reported again while the API is away."""
LABEL_DELAY_S = 0.5
"""Delay between a run's start and the label with its process."""
LONGEST_RETRY_S = 1.0
"""Longest pause between two attempts to reach an API that is away."""


class HoldfastWorkerResult(BaseWorkerResult):
    """How the process of a run ended."""


@dataclass
class _Run:
    """A run under way."""

    flow_run: FlowRun
    process: WarmProcess
    cancelled: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its process ended and its final state is known to the server."""
    helpers: set[asyncio.Task[None]] = field(default_factory=set)


class HoldfastWorker(BaseWorker[BaseJobConfiguration, BaseVariables, HoldfastWorkerResult]):
    """Hands each flow run to a warm process.

    A run is claimed by proposing Pending: the server grants it once, so that neither a poke and a poll nor two
    workers start a run twice. Only module entrypoints are run (``package.module:flow``).
    """

    type = "holdfast"
    job_configuration = BaseJobConfiguration
    _description = (
        "Runs playbooks in warm, pre-imported processes: first task line in a fraction of a second."
    )

    def __init__(self, work_pool_name: str, *, pool: WarmPool, name: str | None = None) -> None:
        # Prefetch 0: a run is claimed when it is due, not before.
        super().__init__(work_pool_name, name=name, prefetch_seconds=0)
        self._pool = pool
        self._orders = DeploymentCache()
        self._runs: dict[UUID, _Run] = {}
        self._stopping = False

    @property
    def status(self) -> dict[str, bool | int]:
        """Whether the API has answered (so that runs can be taken), warm processes, and runs under way."""
        return {
            "connected": self._has_successfully_synced,
            "warm": self._pool.warm,
            "running": len(self._runs),
        }

    async def serve(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then end the runs under way; outlives any absence of the API."""
        async with self:
            loops = [
                asyncio.create_task(loop)
                for loop in (
                    self._repeat("sync", self._sync, self.heartbeat_interval_seconds),
                    self._repeat("poll", self._poll, POLL_S),
                    self._repeat("deployments", self._read_deployments, DEPLOYMENTS_S),
                    self._repeat("watch", self._watch_cancellations, CANCEL_POLL_S),
                    self._repeat("warm up", self._pool.fill, POLL_S),
                )
            ]
            self._logger.info("work pool %r: waiting for flow runs", self._work_pool_name)
            await stop.wait()
            self._logger.info("stopping; %d runs under way", len(self._runs))
            self._stopping = True
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._end_all()
            await self._pool.close()

    def poke(self, flow_run_id: UUID) -> None:
        """Start a run at once; called when it was just created. Repeating it does no harm."""
        group = self._runs_task_group
        if group is None or self._stopping or flow_run_id in self._submitting_flow_run_ids:
            return
        self._submitting_flow_run_ids.add(flow_run_id)
        group.start_soon(self._drive, flow_run_id)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: BaseJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> HoldfastWorkerResult:
        """Hand ``flow_run`` to a warm process and wait until that ends.

        Raises:
            RefusedError: its deployment is none that this worker can run.
        """
        order = await self._orders.make(self.client, flow_run)
        process = await self._pool.take()
        pid = process.give(order)
        run = self._runs[flow_run.id] = _Run(flow_run, process)
        if task_status is not None:
            task_status.started(pid)
        self._pool.refill_later(process.ended)
        run.helpers.add(asyncio.create_task(self._label(flow_run.id, pid)))
        try:
            status = await process.wait()
            await self._report_end(run, status)
        finally:
            for helper in run.helpers:
                helper.cancel()
            del self._runs[flow_run.id]
            run.over.set()
        return HoldfastWorkerResult(identifier=str(pid), status_code=status)

    async def _submit_run(self, flow_run: FlowRun) -> None:
        # What the base's poll calls: the same short path as a poke.
        await self._drive(flow_run.id)

    async def _drive(self, flow_run_id: UUID) -> None:
        """Claim a run and see it through; never raises, or one run would end the worker."""
        try:
            flow_run = await states.claim(self.client, flow_run_id)
        except RefusedError as refused:
            self._logger.info("%s", refused)
            return
        except Exception:
            self._logger.exception("flow run %s: cannot claim it; the poll will try again", flow_run_id)
            return
        finally:
            self._submitting_flow_run_ids.discard(flow_run_id)
        try:
            await self.run(flow_run, self.job_configuration())
        except Exception as error:
            self.get_flow_run_logger(flow_run).exception("cannot run it")
            await self._propose_crashed_state(flow_run, f"cannot run it: {error}")

    async def _label(self, flow_run_id: UUID, pid: int) -> None:
        """Report the run's process to the server; nothing waits for this.

        A moment later, because the run's own first calls meet these at the server's database.
        """
        name = process_name.name_of(pid)
        await asyncio.sleep(LABEL_DELAY_S)
        with contextlib.suppress(httpx.HTTPError, ObjectNotFound):
            await self.client.update_flow_run(flow_run_id, infrastructure_pid=name)
            await self._give_worker_labels_to_flow_run(flow_run_id)

    async def _report_end(self, run: _Run, status: int) -> None:
        """Report a sudden death, by its exit status: the engine reports its own end in all other cases."""
        if status == 0 and not run.cancelled:
            return
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(httpx.HTTPError),
            wait=wait_exponential(0.2, max=2),
            stop=stop_after_delay(REPORT_S),
            reraise=True,
        ):
            with attempt:
                await states.finish(self.client, run.flow_run.id, how, cancelled=run.cancelled)

    async def _sync(self) -> None:
        await self._sync_and_initialize()
        await states.sweep(self.client, self._work_pool_name, self.name, set(self._runs))

    async def _poll(self) -> None:
        await self.get_and_submit_flow_runs()

    async def _read_deployments(self) -> None:
        await self._orders.refresh(self.client, self._work_pool_name)

    async def _watch_cancellations(self) -> None:
        """Find runs that were cancelled, in the UI or elsewhere; asks nothing while none is under way."""
        watched = [run_id for run_id, run in self._runs.items() if not run.cancelled]
        if not watched:
            return
        for seen in await self.client.read_flow_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=watched))
        ):
            run = self._runs.get(seen.id)
            if run and seen.state and (seen.state.is_cancelling() or seen.state.is_cancelled()):
                self._logger.info("flow run %s: cancelled", seen.id)
                run.cancelled = True
                run.process.say(CANCEL)
                run.helpers.add(asyncio.create_task(run.process.kill_after(CANCEL_GRACE_S)))

    async def _end_all(self) -> None:
        """Stop the runs under way: each reports itself Crashed, and the reconciler starts the next attempt.

        Letting them finish would leave playbooks acting without an owner for as long as they like.
        """
        runs = tuple(self._runs.values())
        for run in runs:
            run.process.signal(signal.SIGTERM)
            run.helpers.add(asyncio.create_task(run.process.kill_after(STOP_GRACE_S)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S + 2):
                await asyncio.gather(*(run.over.wait() for run in runs))

    async def _repeat(self, what: str, work: Callable[[], Awaitable[None]], interval_s: float) -> None:
        """Repeat ``work`` for ever; while the API is away, retry with back-off up to a second."""
        failures = 0
        while True:
            try:
                await work()
            except Exception as error:
                failures += 1
                if failures == 1:
                    self._logger.warning("%s: %s %s; trying again", what, type(error).__name__, error)
                await asyncio.sleep(min(0.25 * 2 ** min(failures, 10), LONGEST_RETRY_S))
                continue
            if failures:
                self._logger.info("%s: works again after %d failures", what, failures)
                failures = 0
            await asyncio.sleep(interval_s)
