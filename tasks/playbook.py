"""The decorator that makes a function a playbook: a Prefect flow that takes up an incident, and always ends it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.flows import Flow
from prefect.states import Completed

from holdfast.errors import LimitError, NoStandbyError, NotNeededError, QueuedError, StaleError, StoppedError
from holdfast.models.alert import IncidentClass, IncidentState, Verdict
from holdfast.models.base import Frozen
from holdfast.plugins import PLAYBOOK
from holdfast.tasks import lease, limits
from holdfast.tasks.context import context
from holdfast.tasks.detect import detect
from holdfast.tasks.recovery_context import RecoveryContext, Request
from holdfast.tasks.report import dismissed, observed, outcome, report, stopped


class Recovered(Frozen):
    """A playbook's return value when the job goes on: one line for people, and the findings of the diagnosis."""

    summary: str
    verdict: Verdict | None = None


Steps = Callable[[RecoveryContext], Awaitable[Recovered]]


Playbook = Flow[[Request], Coroutine[Any, Any, State[Any]]]


def playbook(would: str) -> Callable[[Steps], Playbook]:
    """Make the decorated steps the playbook of the incident class that their function is named after.

    The flow takes up the incident, runs the steps, and reports. In mode ``observe`` it reports what it ``would`` do
    and touches nothing. A step that meets a limit (breaker, budget, refusal, nothing to roll back to, no standby)
    ends it at a human, with the step's message, what is missing and when it is retried; where the job can run
    on, it does. A ladder may end with stopping the job instead; what is over by itself, or wanted no more, is
    dismissed. A run whose incident is ended meanwhile (handed over, the job stopped or done) ends with it, and one
    whose incident a newer attempt took over is dismissed. Any other error fails the run: the gateway starts the next
    attempt, which does only what is missing.
    """

    def decorate(steps: Steps) -> Playbook:
        incident_class = IncidentClass.declare(steps.__name__)
        if not inspect.iscoroutinefunction(steps):
            raise TypeError(f"playbook {steps.__name__} is no coroutine: write `async def {steps.__name__}`")
        _takes_one(steps)

        async def run(incident: Request) -> State[Any]:
            try:
                case = await detect(incident, incident_class)
            except QueuedError as queued:
                return Completed(name="Dismissed", message=str(queued))
            except StaleError:
                if over := _why_over(incident.id, incident.attempt):
                    return Completed(name="Dismissed", message=over)
                raise
            try:
                return await _treated(case, steps, would)
            except StaleError:
                # Handed over, or the job was stopped or is done: its end is no failure of this run.
                if case.incident.state is not IncidentState.OPEN:
                    return outcome(case)
                if over := _why_over(case.incident_id, case.attempt):
                    return Completed(name="Dismissed", message=over)
                raise

        run.__name__, run.__qualname__ = steps.__name__, steps.__qualname__
        run.__module__, run.__doc__ = steps.__module__, steps.__doc__
        vars(run)[PLAYBOOK] = incident_class.value
        # The parameters are validated already when the gateway makes the run; a person's input in the UI, here.
        return flow(name=steps.__name__.replace("_", "-"), persist_result=False)(run)

    return decorate


def _takes_one(steps: Steps) -> None:
    """Refuse a playbook that cannot be called with its case alone: that would show in its first incident.

    Raises:
        TypeError: it takes more, or nothing.
    """
    takes = inspect.signature(steps)
    try:
        takes.bind(None)
    except TypeError:
        raise TypeError(
            f"playbook {steps.__name__} takes {takes}: write `async def {steps.__name__}(case: RecoveryContext)`; "
            "figures of its own are in `case.values`, from its policy entry"
        ) from None


async def _treated(case: RecoveryContext, steps: Steps, would: str) -> State[Any]:
    """Run the steps and report how they ended; return the flow run's final state."""
    with lease.kept(case):
        if case.observe_only:
            await observed(case, would)
            return outcome(case)
        try:
            ending = _ending(steps, await steps(case))
        except StoppedError as end:
            await stopped(case, str(end))
        except NotNeededError as end:
            await dismissed(case, str(end))
        except (LimitError, NoStandbyError) as limit:
            await limits.met(case, limit)
        else:
            await report(case, ending.summary, _for_people(ending.verdict))
        return outcome(case)


def _ending(steps: Steps, returned: object) -> Recovered:
    """Return what the steps returned.

    Raises:
        TypeError: it is something else, such as a state of Prefect's.
    """
    if isinstance(returned, Recovered):
        return returned
    raise TypeError(
        f"playbook {steps.__name__} returned {type(returned).__name__} {returned!r:.100}: return "
        "Recovered(summary=...) where the job goes on, and raise LimitError(reason) where a person must decide"
    )


def _why_over(incident_id: str | None, attempt: int) -> str:
    """Return why nothing is left to do for a run of this attempt; empty: it failed, which people hear of."""
    if incident_id is None:
        return ""
    now = context().ledger.incident(incident_id)
    if now.state is not IncidentState.OPEN:
        return f"nothing to do: {now.id} is closed ({now.state}: {now.summary})"
    return f"attempt {attempt} of {now.id} was taken over by {now.attempt}" if attempt < now.attempt else ""


def _for_people(verdict: Verdict | None) -> Verdict | None:
    """Return what a report shows: Prefect looks through all that a task is given, and findings may be 50,000."""
    return None if verdict is None else verdict.model_copy(update={"findings": ()})
