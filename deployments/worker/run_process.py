"""The warm process: forked, warmed up, then it waits for one flow run, drives it and ends.

It drives the run with the same wrappers as ``python -m prefect.engine``, so states, signals, hooks, retries,
pauses and exit statuses are Prefect's own. Over its pipe it gets one :class:`Order`, later perhaps ``CANCEL``.
When the pipe closes, the worker is gone: the run reports itself crashed and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

import httpx
from prefect._internal import control_listener
from prefect.client.schemas.objects import FlowRun
from prefect.context import AsyncClientContext
from prefect.engine import handle_engine_signals
from prefect.events.worker import EventsWorker
from prefect.flow_engine import run_flow
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.logging.configuration import setup_logging
from prefect.logging.handlers import APILogWorker
from prefect.logging.loggers import flow_run_logger

from holdfast.deployments.worker.calm_log import calm_log
from holdfast.errors import HoldfastError
from holdfast.tasks.context import context

READY = "ready"
CANCEL = "cancel"

_ORPHAN_GRACE_S = 10.0
_DRAIN_S = 5.0
_WARM_CALL_S = 2.0


@dataclass(frozen=True)
class Order:
    """One flow run to drive."""

    flow_run: dict[str, Any]
    """The run as the API gave it (JSON)."""
    entrypoint: str
    env: dict[str, str] = field(default_factory=dict)


def main(pipe: Connection) -> None:
    """Run the forked process; the exit status shows how the run's infrastructure ended."""
    # Ctrl-C in a terminal reaches the whole group; the worker decides what happens to its runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup_logging()
    calm_log()
    # The site may have no ledger yet; the run that needs one reports that.
    with contextlib.suppress(HoldfastError):
        context().ledger.jobs()
    runner = asyncio.Runner()
    clients = runner.run(_warm_up())
    # An error here occurs again in the run, and is reported there.
    with contextlib.suppress(HoldfastError):
        context().warm()
    calm_collector()
    pipe.send(READY)
    try:
        order: Order = pipe.recv()
    except EOFError:
        runner.run(clients.__aexit__(None, None, None))
        return
    threading.Thread(target=_obey, args=(pipe,), daemon=True, name="worker-pipe").start()
    try:
        _drive(order, runner, clients)
    finally:
        # multiprocessing ends processes without atexit: send what is still queued.
        APILogWorker.drain_all(timeout=_DRAIN_S)
        EventsWorker.drain_all(timeout=_DRAIN_S)


def calm_collector() -> None:
    """Collect garbage seldom in a process of one run, and never scan objects from before the run."""
    gc.set_threshold(50_000, 20, 20)
    gc.freeze()


async def _warm_up() -> AsyncClientContext:
    """Open the client that the engine will find and use, and make one call through it.

    A POST, so that the client has its CSRF token too. The API may be away: the run that comes later finds out
    for itself.
    """
    clients = AsyncClientContext()
    await clients.__aenter__()
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_WARM_CALL_S):
            await clients.client.read_flows(limit=1)
    return clients


def _drive(order: Order, runner: asyncio.Runner, clients: AsyncClientContext) -> None:
    os.environ.update(order.env)
    flow_run = FlowRun.model_validate(order.flow_run)
    os.environ["PREFECT__FLOW_RUN_ID"] = str(flow_run.id)
    log = flow_run_logger(flow_run=flow_run)
    with handle_engine_signals(flow_run.id):
        try:
            flow: Flow[..., Any] = load_flow_from_entrypoint(order.entrypoint, use_placeholder_flow=False)
        except Exception:
            log.error("cannot load the flow from %s", order.entrypoint, exc_info=True)
            raise
        try:
            if flow.isasync:
                runner.run(_drive_async(flow, flow_run, clients))
        finally:
            # After a signal this cancels the flow's task, in which the engine then reports the end.
            runner.close()
        if not flow.isasync:
            _exhaust(run_flow(flow, flow_run=flow_run))


async def _drive_async(flow: Flow[..., Any], flow_run: FlowRun, clients: AsyncClientContext) -> None:
    try:
        result: object = run_flow(flow, flow_run=flow_run)
        if inspect.isasyncgen(result):
            async for _ in result:
                pass
        elif inspect.isawaitable(result):
            await result
    finally:
        await clients.__aexit__(None, None, None)


def _exhaust(result: object) -> None:
    if inspect.isgenerator(result):
        for _ in result:
            pass


def _obey(pipe: Connection) -> None:
    """Turn the worker's word (or its death) into the signal that Prefect's engine understands.

    With the intent set, the engine ends the run as Cancelled; without it, as Crashed.
    """
    intent: Literal["cancel"] | None = None
    try:
        if pipe.recv() == CANCEL:
            intent = "cancel"
    except (EOFError, OSError):
        pass
    if intent:
        control_listener._set_intent(intent)
    os.kill(os.getpid(), signal.SIGTERM)
    if not intent:
        time.sleep(_ORPHAN_GRACE_S)
        os._exit(1)
