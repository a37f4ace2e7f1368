"""The job's past as a ladder gets it: since a person's last act, with the progress after each incident."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import FakeClock
from holdfast.models.alert import Alert, AlertKind, Classification, Incident, IncidentClass, IncidentState
from holdfast.models.job import JobSpec, JobState
from holdfast.operations import recurrence
from holdfast.operations.context import Context
from holdfast.settings import Settings
from holdfast.storage.ledger import Ledger
from holdfast.tasks import history

SPEC = JobSpec(name="gpt", script="train.py", machines=2, ranks_per_machine=2)


class Past:
    """A job whose past is written step by step."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.ledger = ctx, ctx.ledger
        self.submit()

    def submit(self) -> None:
        self.ctx.clock.advance(10)  # type: ignore[attr-defined]
        self.ledger.add_job(SPEC, "v1")
        self.start(None, 0)

    def start(self, incident: str | None, step: int, version: str = "v1") -> None:
        self.ctx.clock.advance(10)  # type: ignore[attr-defined]
        self.ledger.open_epoch(
            "gpt", self.ledger.next_epoch("gpt"), step, version, ["m0", "m1"], "test", incident_id=incident
        )

    def reach(self, step: int) -> None:
        self.ledger.mark("gpt", self.ledger.job("gpt").epoch, step, self.ctx.clock.now())

    def fail(
        self,
        incident_class: IncidentClass = IncidentClass.JOB_CRASH,
        rank: int = 1,
        *,
        after_s: float = 10,
        signal: str = "SIGSEGV",
    ) -> Incident:
        self.ctx.clock.advance(after_s)  # type: ignore[attr-defined]
        epoch, now = self.ledger.job("gpt").epoch, self.ctx.clock.now()
        alert = Alert(
            kind=AlertKind.RANK_EXIT,
            job="gpt",
            rank=rank,
            epoch=epoch,
            at=now,
            evidence={"signal": signal},
        )
        found = Classification(incident_class=incident_class, confidence=1.0, reasons=("test",))
        return self.ledger.open_incident("gpt", found, epoch, [alert], now)

    def recover(self, incident: Incident, step: int) -> None:
        self.ledger.set_incident(incident.id, state=IncidentState.RECOVERED)
        self.start(incident.id, step)


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    ctx = Context(Settings(home=tmp_path), clock=FakeClock(1000.0))
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", ctx.clock)
    ledger.create()
    ctx.__dict__["ledger"] = ledger
    yield Past(ctx)
    ledger.close()


def test_new_steps_and_steps_done_again_are_distinguished(past: Past) -> None:
    """A fall-back from step 100 to step 40, then on to 103."""
    past.reach(100)
    past.recover(past.fail(), 40)
    past.reach(103)
    (before,) = history.past_incidents(past.ctx, past.fail())
    assert (before.progressed_steps, before.redone_steps) == (3, 60)
    assert (before.signature.what, before.signature.position.step) == ("SIGSEGV", 100)


@pytest.mark.parametrize(
    ("signal", "before_s", "ran_s", "progress"),
    [
        ("SIGKILL", 600, 7200, True),
        ("SIGKILL", 7200, 7200, True),
        ("SIGKILL", 7200, 600, False),
        ("SIGSEGV", 600, 7200, True),
        ("SIGSEGV", 7000, 7200, False),
    ],
)
def test_a_job_without_steps_makes_progress_by_running(
    past: Past, signal: str, before_s: float, ran_s: float, progress: bool
) -> None:
    """An hour is enough, unless a failure of its own came after as long a run before."""
    past.recover(past.fail(after_s=before_s, signal=signal), 0)
    (before,) = history.past_incidents(past.ctx, past.fail(after_s=ran_s, signal=signal))
    assert before.ran_on is progress


def test_the_time_before_an_incident_is_no_progress_after_it(past: Past) -> None:
    """Two incidents of one epoch, which ran for long before the first."""
    first = past.fail(after_s=7200, signal="SIGKILL")
    past.ledger.set_incident(first.id, state=IncidentState.RECOVERED)
    (before,) = history.past_incidents(past.ctx, past.fail(after_s=60, signal="SIGKILL"))
    assert not before.ran_on


def test_a_job_with_steps_makes_none_by_running(past: Past) -> None:
    """It stood still for two hours."""
    past.reach(100)
    past.recover(past.fail(), 100)
    (before,) = history.past_incidents(past.ctx, past.fail(after_s=7200))
    assert not before.ran_on


@pytest.mark.parametrize("how", ["submitted again", "resumed by hand", "other code"])
def test_a_person_starts_a_fresh_ladder(past: Past, how: str) -> None:
    """Nothing of before counts."""
    past.recover(past.fail(), 0)
    assert len(history.past_incidents(past.ctx, past.fail())) == 1
    if how == "submitted again":
        past.ledger.set_job("gpt", state=JobState.STOPPED)
        past.submit()
    elif how == "resumed by hand":
        past.start(None, 0)
    else:
        past.recover(past.fail(IncidentClass.CODE_UPDATE), 0)
    listed = history.past_incidents(past.ctx, past.fail())
    assert [
        each.incident_class for each in listed if each.incident_class is not IncidentClass.CODE_UPDATE
    ] == []


def test_a_version_is_as_old_as_its_first_epoch(past: Past) -> None:
    """Restarts do not make it new; nor does what an earlier submission ran."""
    past.recover(past.fail(), 0)
    assert history.facts(past.ctx, past.fail(), False).version_age_s == 30.0
    past.ledger.set_job("gpt", state=JobState.STOPPED)
    past.submit()
    assert history.facts(past.ctx, past.fail(), False).version_age_s == 10.0


def test_a_job_that_fails_often_is_checked_longer(past: Past) -> None:
    """Whatever fails, and whatever progress it makes; not for what lies long back."""
    limit = past.ctx.policy.ladder.often.incidents
    for number in range(limit):
        past.reach(100 * (number + 1))
        past.recover(past.fail(), 100 * (number + 1))
    newest = past.fail()
    assert recurrence.fails_often(past.ctx, newest)
    past.ctx.clock.advance(2 * past.ctx.policy.ladder.often.window_s)  # type: ignore[attr-defined]
    assert not recurrence.fails_often(past.ctx, past.fail())


def test_a_start_that_fell_in_the_same_way_before_its_first_step_is_counted(past: Past) -> None:
    """Not one that fell in another way, came to a step, or began elsewhere."""
    past.reach(20)
    incident = past.fail()
    failed = history.signature_of(past.ctx, incident, past.ledger.epochs("gpt"))
    assert failed.position.step == 20
    for step, reached, evidence in (
        (20, None, {"signal": "SIGSEGV"}),
        (20, None, {"signal": "SIGBUS"}),
        (20, 21, {"signal": "SIGSEGV"}),
        (10, None, {"signal": "SIGSEGV"}),
    ):
        past.start(incident.id, step)
        epoch = past.ledger.job("gpt").epoch
        if reached:
            past.reach(reached)
        again = Alert(kind=AlertKind.RANK_EXIT, job="gpt", rank=1, epoch=epoch, at=0.0, evidence=evidence)
        past.ledger.join(incident.id, [again])
    newest = past.ledger.incident(incident.id)
    assert history.fell_again(past.ctx, newest, epoch, failed) == 1
    assert history.fell_again(past.ctx, newest, epoch, failed, {incident.epoch}) == 0, (
        "the newest is counted itself"
    )
    assert history.fell_again(past.ctx, newest, incident.epoch, failed) == 0
