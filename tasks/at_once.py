"""Tasks that a playbook submits or maps, without Prefect: each is run to its end at once, in a thread of its own.

As Prefect's task runner does it: an asynchronous task has an event loop of its own there. One after the other, so that
a test sees the same order each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed
from prefect.task_runners import TaskRunner
from prefect.tasks import Task
from prefect.utilities.callables import get_call_parameters, parameters_to_args_kwargs
from prefect.utilities.engine import resolve_inputs_sync


class FinishedFuture(PrefectFuture[Any]):
    """The future of a task that has ended."""

    def __init__(self, result: object, error: Exception | None) -> None:
        # Not the parent's: it warns that children have their own.
        self._task_run_id = uuid.uuid4()
        self._result, self._error = result, error
        self._final_state: State[Any] = (
            Completed(data=result) if error is None else Failed(message=str(error), data=error)
        )

    @property
    def task_run_id(self) -> uuid.UUID:
        """An identity, of no task run that Prefect knows."""
        return self._task_run_id

    @property
    def state(self) -> State[Any]:
        """Completed or failed."""
        return self._final_state

    def wait(self, timeout: float | None = None) -> None:
        """It has ended."""

    def result(self, timeout: float | None = None, raise_on_failure: bool = True) -> Any:
        """Return the task's result, or raise its error; without ``raise_on_failure`` that is returned."""
        if self._error is not None and raise_on_failure:
            raise self._error
        return self._result if self._error is None else self._error

    def add_done_callback(self, fn: Callable[[PrefectFuture[Any]], None]) -> None:
        """Call ``fn`` now."""
        fn(self)


class AtOnce(TaskRunner[FinishedFuture]):
    """Runs what is submitted before it returns; how arguments are mapped is Prefect's own doing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def duplicate(self) -> AtOnce:
        """Return another one."""
        return AtOnce()

    def submit(
        self,
        task: Task[Any, Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> FinishedFuture:
        """Run the task's function, once the futures in its arguments, and those to wait for, have their results."""
        try:
            resolve_inputs_sync({"wait_for": list(wait_for or ())})
            args, kwargs = parameters_to_args_kwargs(task.fn, resolve_inputs_sync(parameters))
            return FinishedFuture(_in_thread(task.fn, args, kwargs), None)
        except Exception as error:  # the future has it, as Prefect's would
            return FinishedFuture(None, error)


def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``function`` in a thread, on an event loop of its own if it is asynchronous; return its result."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            answer = function(*args, **kwargs)
            found.append(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
        except BaseException as error:  # handed on below
            failed.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(call,))
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _submit(
    task: Task[Any, Any], *args: Any, wait_for: Any = None, return_state: bool = False, **kwargs: Any
) -> Any:
    parameters = get_call_parameters(task.fn, args, kwargs)
    with AtOnce() as runner:
        future = runner.submit(task, parameters, wait_for)
    return future.state if return_state else future


def _map(
    task: Task[Any, Any], *args: Any, wait_for: Any = None, return_state: bool = False, **kwargs: Any
) -> Any:
    # Defaults are not mapped over.
    parameters = get_call_parameters(task.fn, args, kwargs, apply_defaults=False)
    with AtOnce() as runner:
        futures = runner.map(task, parameters, wait_for)
    return [future.state for future in futures] if return_state else futures


@contextlib.contextmanager
def run_at_once() -> Iterator[None]:
    """Have ``submit`` and ``map`` of all tasks run their functions while the context is open."""
    with patch.object(Task, "submit", _submit), patch.object(Task, "map", _map):
        yield
