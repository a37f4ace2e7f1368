"""Return values of steps in custom playbooks: an invalid one is named, with the valid one to return instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.states import Failed

from holdfast.models.alert import IncidentClass
from holdfast.operations.context import Context
from holdfast.tasks.playbook import Recovered, Steps, playbook
from holdfast.tasks.recovery_context import RecoveryContext, Request
from tests.tasks.two_machines import case_of, played


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with played(tmp_path) as ctx:
        yield ctx


@pytest.mark.parametrize("what", [None, "all good", Failed(message="I give up")], ids=type)
async def test_another_answer_than_recovered_is_named(ctx: Context, what: Any) -> None:
    """A writer who knows Prefect may return a state, and one who forgets to return gets None."""

    async def job_crash(_: RecoveryContext) -> Recovered:
        """Recover."""
        return cast("Recovered", what)

    case = case_of(ctx, IncidentClass.JOB_CRASH)
    with pytest.raises(TypeError, match=rf"job_crash returned {type(what).__name__} .*LimitError\(reason\)"):
        await playbook(would="nothing")(job_crash).fn(Request(id=case.incident_id, attempt=1))


def test_a_plain_function_is_refused_when_it_is_loaded() -> None:
    """Awaited at the end, it would fail after everything was done."""

    def job_crash(_: RecoveryContext) -> Recovered:
        return Recovered(summary="")

    with pytest.raises(TypeError, match="write `async def job_crash`"):
        playbook(would="nothing")(cast("Steps", job_crash))


def test_steps_that_take_no_case_or_more_are_refused_when_they_are_loaded() -> None:
    """Both failed in each attempt of their first incident; what has a default is not asked for."""

    async def job_crash() -> Recovered:
        return Recovered(summary="")

    async def job_hang(_: RecoveryContext, looks: int) -> Recovered:
        return Recovered(summary=str(looks))

    async def nan_loss(_: RecoveryContext, looks: int = 3) -> Recovered:
        return Recovered(summary=str(looks))

    for steps, takes in ((job_crash, r"\(\)"), (job_hang, "looks: 'int'")):
        with pytest.raises(TypeError, match=rf"{takes}.*case: RecoveryContext.*case\.values"):
            playbook(would="nothing")(cast("Steps", steps))
    playbook(would="nothing")(nan_loss)
