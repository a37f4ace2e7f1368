"""Patches for one run: production code gets the simulation's process and host instead of its own."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from fastapi import APIRouter
from prefect.logging import disable_run_logger
from prefect.tasks import Task

from tests.nemesis import runs
from tests.nemesis.network import Client
from tests.nemesis.scheduler import Killed, Scheduler

if TYPE_CHECKING:
    from tests.nemesis.site import Site


_PID = 1 << 23
"""In histories, which are the same wherever they are played; no process of Linux has it."""


def _end_leftover(scheduler: Scheduler) -> None:
    """End a generator that the collector closes after its run: no time passes any more for what it waits for."""
    if scheduler.over:
        raise Killed


class _Event:
    """As ``threading.Event``, in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._set = scheduler, False

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float) -> bool:
        until = self._scheduler.now + seconds
        while not self._set and self._scheduler.now < until:
            _end_leftover(self._scheduler)
            self._scheduler.block(min(0.5, until - self._scheduler.now))
        return self._set


class _Thread:
    """As ``threading.Thread``: of the process that starts it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None]) -> None:
        self._scheduler, self._target, self._done = scheduler, target, False

    def start(self) -> None:
        def body() -> None:
            self._target()
            self._done = True

        assert self._scheduler.current is not None
        self._scheduler.current.thread(body)

    def join(self) -> None:
        while not self._done:
            _end_leftover(self._scheduler)
            self._scheduler.block(0.05)


class _Threading:
    """As the module."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.Event = lambda: _Event(scheduler)
        self.Thread = lambda target, **_: _Thread(scheduler, target)


class _FlowRun:
    """As ``prefect.runtime.flow_run``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def id(self) -> str:
        return self._scheduler.current.run_id if self._scheduler.current else ""


async def _publish(*_: object, **__: object) -> None:
    """Discard the event: it has no reader."""


@contextlib.contextmanager
def patched(site: Site) -> Iterator[None]:
    """Everything at once."""
    scheduler = site.scheduler
    numbers = itertools.count(1)

    def wall() -> float:
        return site.wall(scheduler.current.host if scheduler.current else "")

    def client(**named: Any) -> Client:
        assert scheduler.current is not None
        return Client(site.network, scheduler.current, named.get("timeout", 5.0))

    def unused(*_: object) -> APIRouter:
        """Skip routes that are never requested: they take time to make."""
        return APIRouter()

    pages = [
        (f"holdfast.deployments.gateway.app.{part}", "routes", unused)
        for part in ("views", "entrance", "read")
    ]
    places: list[tuple[Any, str, Any]] = [
        *pages,
        (time, "time", wall),
        (time, "monotonic", lambda: scheduler.now),
        (os, "getpid", lambda: _PID),
        (uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) << 96 | 1)),
        ("holdfast.agent.client.httpx", "AsyncClient", client),
        ("holdfast.agent.ranks.jobs", "Watched", lambda process, *_: process),
        ("holdfast.agent.ranks.jobs", "stop", runs.stop),
        ("holdfast.agent.ranks.run", "stop", runs.stop),
        ("holdfast.agent.roles.replica", "Watched", lambda process, *_: process),
        ("holdfast.agent.roles.replica", "stop", runs.stop),
        ("holdfast.agent.ranks.blocked", "used", lambda _pid: None),
        ("holdfast.agent.ranks.survivors", "why_not_left", runs.why_not_left),
        (
            "holdfast.agent.ranks.survivors",
            "_ask_to_leave",
            lambda control: runs.ask_to_leave(site, control),
        ),
        (
            "holdfast.agent.ranks.survivors",
            "order",
            lambda control, run: runs.order_to_go_on(site, control, run),
        ),
        ("holdfast.agent.ranks.rendezvous", "open_store", runs.open_store),
        ("holdfast.tasks.lease", "threading", _Threading(scheduler)),
        ("holdfast.tasks.lease", "flow_run", _FlowRun(scheduler)),
        ("holdfast.tasks.detect", "flow_run", _FlowRun(scheduler)),
        ("holdfast.tasks.report", "_publish", _publish),
        (Task, "__call__", lambda self, *args, **named: self.fn(*args, **named)),
    ]
    with contextlib.ExitStack() as stack:
        for place, name, new in places:
            stack.enter_context(
                patch(f"{place}.{name}", new) if isinstance(place, str) else patch.object(place, name, new)
            )
        stack.enter_context(disable_run_logger())
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
