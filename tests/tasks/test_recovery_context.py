"""The rule "never twice": steps repeat safely, and older attempts cannot act."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from holdfast.errors import RecoveryError, StaleError
from holdfast.models.alert import Alert, AlertKind, Classification, IncidentClass
from holdfast.models.job import JobSpec
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.tasks.case import Case
from holdfast.tasks.context import use
from holdfast.tasks.recovery_context import RecoveryContext
from holdfast.tasks.rollback import rollback


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    ctx = Context(Settings(home=tmp_path))
    ctx.ledger.create()
    ctx.ledger.add_job(JobSpec(name="gpt", script="t.py", machines=2, ranks_per_machine=1), "v1")
    use(ctx)
    yield ctx
    use(None)


@pytest.fixture
def case(ctx: Context) -> RecoveryContext:
    alert = Alert(kind=AlertKind.RANK_EXIT, job="gpt", epoch=1, at=1.0)
    found = Classification(incident_class=IncidentClass.JOB_CRASH, confidence=0.5, reasons=("x",))
    incident = ctx.ledger.open_incident("gpt", found, 1, [alert], 1.0)
    return RecoveryContext(
        incident_id=incident.id,
        attempt=1,
        job="gpt",
        incident_class=incident.incident_class,
        broken_epoch=1,
    ).within(ctx)


async def test_a_rollback_that_was_killed_when_the_code_was_switched_marks_no_good_version_bad(
    ctx: Context, case: RecoveryContext
) -> None:
    """Repeated, the version that the job has by then is the one that it went back to."""
    for version in ("v0", "v1", "v2"):
        ctx.ledger.add_version("gpt", version, "key", "test")
    ctx.ledger.set_job("gpt", code_version="v2")
    ctx.ledger.open_epoch("gpt", 1, 0, "v1", ["m0", "m1"], "test")
    ctx.ledger.mark("gpt", 1, 1, 1000.0)
    end = ctx.ledger.finish

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with disable_run_logger():
        ctx.ledger.__dict__["finish"] = killed
        with pytest.raises(KeyboardInterrupt):
            await rollback.fn(case, "test")
        ctx.ledger.__dict__["finish"] = end
        assert ctx.ledger.job("gpt").code_version == "v1"
        assert await rollback.fn(case, "test") == "v1"
    assert ctx.ledger.job("gpt").code_version == "v1"
    assert [known.version for known in ctx.ledger.versions("gpt") if known.bad] == ["v2"]


class Act:
    """Counts how often it was done; may be set to fail."""

    def __init__(self) -> None:
        self.times = 0
        self.broken = False

    async def __call__(self) -> dict[str, int]:
        if self.broken:
            raise RecoveryError("broken")
        self.times += 1
        return {"times": self.times}


async def test_a_step_that_is_done_is_not_done_again(case: RecoveryContext) -> None:
    """The second run gets the first one's result."""
    act = Act()
    assert await case.once("evict", "m1", {}, act) == {"times": 1}
    assert await case.once("evict", "m1", {}, act) == {"times": 1}
    assert act.times == 1


async def test_a_step_that_failed_is_tried_again(case: RecoveryContext) -> None:
    """Failure is in the ledger, and does not count as done."""
    act = Act()
    act.broken = True
    with pytest.raises(RecoveryError):
        await case.once("evict", "m1", {}, act)
    assert case.ctx.ledger.actions(case.incident_id)[0].state == "failed"
    act.broken = False
    assert await case.once("evict", "m1", {}, act) == {"times": 1}


async def test_an_older_attempt_cannot_act(case: RecoveryContext) -> None:
    """Once the next attempt began, the old run is refused before it does anything."""
    case.ctx.ledger.next_attempt(case.incident_id, 1)
    act = Act()
    with pytest.raises(StaleError):
        await case.once("evict", "m1", {}, act)
    assert act.times == 0


def test_the_former_name_is_the_same_class() -> None:
    """Playbooks of other packages that were written for the last release import it."""
    assert Case is RecoveryContext
