"""The first new step: beyond all that was done, or the next one where training never stopped."""

from __future__ import annotations

from holdfast.models.agent import StepMark
from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Epoch
from holdfast.policies.accounting import new_step

ENDED_AT = 50.0


def incident(*, closed_at: float | None = ENDED_AT) -> Incident:
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=IncidentClass.FAIL_SLOW,
        state=IncidentState.OPEN if closed_at is None else IncidentState.RECOVERED,
        epoch=1,
        confidence=1.0,
        reasons=("x",),
        detected_at=40.0,
        opened_at=40.0,
        closed_at=closed_at,
    )


def row(
    epoch: int, opened_at: float, last_step: int | None = None, last_step_at: float | None = None
) -> Epoch:
    return Epoch(
        job="gpt",
        epoch=epoch,
        start_step=0,
        code_version="v1",
        machines=("m0",),
        reason="test",
        opened_at=opened_at,
        first_step=last_step,
        first_step_at=last_step_at,
        last_step=last_step,
        last_step_at=last_step_at,
    )


def mark(step: int, at: float) -> StepMark:
    return StepMark(step=step, at=at, s=1.0)


def test_training_that_never_stopped_is_proved_by_its_next_step() -> None:
    """Not by steps from before the end, nor by those of another epoch."""
    trains = [row(1, 0.0, 9, 49.0)]
    assert new_step.first_at(incident(), trains, 1, [mark(10, 49.5)]) is None
    assert new_step.first_at(incident(), trains, 1, [mark(11, 51.0), mark(12, 52.0)]) == 51.0
    assert new_step.first_at(incident(closed_at=None), trains, 1, [mark(11, 51.0)]) is None


def test_steps_that_no_gateway_watched_prove_it_at_its_end() -> None:
    """The row has the newest step alone, which may be hours later."""
    assert new_step.first_at(incident(), [row(1, 0.0, 900, 4000.0)], None, []) == ENDED_AT
    later = [row(1, 0.0, 900, 4000.0), row(2, 5000.0, 901, 5001.0)]
    assert new_step.first_at(incident(), later, None, []) == ENDED_AT
    assert new_step.first_at(incident(), later, 2, [mark(902, 5002.0)]) == ENDED_AT


def test_a_job_that_was_started_again_has_to_do_a_step_that_is_new() -> None:
    """Whether the incident ended before or after that step; steps that are done again do not count."""
    restarted = [row(1, 0.0, 9, 39.0), row(2, 45.0)]
    assert new_step.first_at(incident(), restarted, 2, [mark(9, 51.0)]) is None
    assert new_step.first_at(incident(), restarted, 2, [mark(10, 52.0)]) == 52.0
    assert new_step.first_at(incident(closed_at=None), restarted, 2, [mark(10, 48.0)]) == 48.0


def test_a_job_that_fell_as_soon_as_it_ended_is_proved_by_the_next_epoch() -> None:
    """No step of the old epoch followed."""
    fell = [row(1, 0.0, 9, 49.0), row(2, 60.0, 10, 61.0)]
    assert new_step.first_at(incident(), fell, None, []) == 61.0
