"""The account of lost time: every microsecond is counted once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Incident, IncidentClass, IncidentState
from holdfast.models.history import Action, ActionState, Epoch, StateChange, Stretch
from holdfast.models.job import JobState
from holdfast.policies.accounting.ettr import Ettr, ettr
from holdfast.policies.accounting.lost_time import LostPhase, Span, account
from tests.policies.make import epoch


def incident(number: int, at: float, **changes: Any) -> Incident:
    facts: dict[str, Any] = {
        "incident_class": IncidentClass.JOB_CRASH,
        "state": IncidentState.RECOVERED,
        "epoch": number,
        "opened_at": at,
    }
    return Incident(id=f"gpt-{number}", job="gpt", detected_at=at, **{**facts, **changes})


def action(kind: str, begun: float, done: float | None, number: int = 1, **result: Any) -> Action:
    return Action(
        incident_id=f"gpt-{number}",
        key=f"{kind}:{begun}",
        kind=kind,
        state=ActionState.INTENT if done is None else ActionState.DONE,
        result=result,
        begun_at=begun,
        done_at=done,
    )


def second(found: Epoch, **changes: Any) -> Epoch:
    return found.model_copy(update=changes)


# Ten steps of 1 s; a fault at 10, seen at 13; recovered from step 8: two steps again.
EPOCHS = (
    epoch(1, 0.0, (1, 1.0), (10, 10.0)),
    second(epoch(2, 20.0, (9, 24.0), (20, 35.0)), incident_id="gpt-1"),
)
ACTIONS = (
    action("pause", 14.0, 15.0),
    action("check", 15.0, 17.0),
    action("evict", 17.5, 18.0),
    action("swap", 18.0, 20.0, waited_s=1.5),
    action("start", 20.0, 22.0),
    action("verify", 22.0, 24.0),
    action("replenish", 24.0, 30.0),
)
CRASH = incident(1, 13.0, closed_at=24.5, recovered_at=26.0)


def test_every_phase_of_a_recovery_is_named() -> None:
    """One incident, from its actions."""
    found = ettr(EPOCHS, 35.0, incidents=[CRASH], actions=ACTIONS)
    assert found.account.by_phase() == pytest.approx(
        {
            "undetected": 3.0,
            "pausing": 1.0,
            "diagnosing": 2.0,
            "deciding": 1.5,
            "swapping": 1.0,
            "restoring": 2.0,
            "restarting": 1.0,  # the first step of the epoch began at 23
            "recomputing": 2.0,
            "waiting": 1.5,
        }
    )
    assert found.account.by_class() == pytest.approx({"job_crash": 15.0})
    assert found.productive_s == pytest.approx(20.0)
    assert found.worst_gap_s == pytest.approx(15.0)


def test_checkpoint_stalls_come_out_of_productive_time() -> None:
    """The step reports say how long training stood still."""
    whole = Stretch(job="gpt", epoch=1, first_step=1, last_step=10, begun_at=0.0, ended_at=10.0, stall_s=0.5)
    found = ettr(EPOCHS[:1], 10.0, stretches=[whole])
    assert found.account.by_phase() == pytest.approx({"checkpoint_stalls": 0.5})
    assert found.productive_s == pytest.approx(9.5)
    assert found.worst_gap_s == 0.0
    half = ettr(EPOCHS[:1], 10.0, since=5.0, stretches=[whole])
    assert half.account.by_phase() == pytest.approx({"checkpoint_stalls": 0.25})


def test_a_hold_by_a_person_is_waiting_even_between_two_steps() -> None:
    """The epoch goes on after it: only the job's state shows it."""
    states = [
        StateChange(job="gpt", state=state, at=at)
        for state, at in ((JobState.PAUSED, 4.0), (JobState.RUNNING, 7.0))
    ]
    found = ettr(EPOCHS[:1], 10.0, states=states)
    assert found.account.by_phase() == pytest.approx({"waiting": 3.0})


def test_a_job_that_a_person_stopped_and_resumed_later_waited_meanwhile() -> None:
    """Its start did not take half an hour."""
    first, second, *_ = EPOCHS
    states = [
        StateChange(job="gpt", state=state, at=at)
        for state, at in ((JobState.STOPPED, 10.0), (JobState.RUNNING, second.opened_at - 0.5))
    ]
    found = ettr([first, second], second.first_step_at or 0.0, states=states)
    assert found.account.by_phase()["waiting"] == pytest.approx(second.opened_at - 10.5)


def test_after_the_playbooks_gave_up_a_person_is_waited_for() -> None:
    """Until the next start, or now."""
    stuck = incident(1, 13.0, state=IncidentState.NEEDS_HUMAN, closed_at=15.0)
    found = ettr(EPOCHS[:1], 100.0, incidents=[stuck], actions=ACTIONS[:1])
    assert found.account.by_phase() == pytest.approx(
        {"undetected": 3.0, "pausing": 1.0, "deciding": 1.0, "waiting": 85.0}
    )
    again = ettr(EPOCHS, 35.0, incidents=[stuck], actions=ACTIONS[:1])
    assert again.account.by_phase()["waiting"] == pytest.approx(5.0)


def test_an_open_incident_counts_until_now() -> None:
    """An act that is under way is in the account."""
    found = ettr(
        EPOCHS[:1],
        16.0,
        incidents=[incident(1, 13.0, state=IncidentState.OPEN)],
        actions=[action("check", 14.0, None)],
    )
    assert found.account.by_phase() == pytest.approx({"undetected": 3.0, "deciding": 1.0, "diagnosing": 2.0})


def test_a_second_incident_meanwhile_counts_once() -> None:
    """The older one's playbook acts; the newer waits, and that is no time of its own."""
    other = incident(1, 15.0, closed_at=24.0, incident_class=IncidentClass.JOB_HANG).model_copy(
        update={"id": "gpt-2"}
    )
    alone = ettr(EPOCHS, 35.0, incidents=[CRASH], actions=ACTIONS)
    both = ettr(EPOCHS, 35.0, incidents=[other, CRASH], actions=ACTIONS)
    assert both.account.by_class() == alone.account.by_class()


def test_the_step_under_way_is_not_lost_until_it_is_late() -> None:
    """Between two reports nothing is known to be wrong."""
    assert ettr(EPOCHS[:1], 12.0).ettr == 1.0
    late = ettr(EPOCHS[:1], 20.0)
    assert late.account.by_phase() == pytest.approx({"undetected": 10.0})


times = st.floats(-10, 1000, allow_nan=False)
labels = st.sampled_from([None, *LostPhase])


@st.composite
def any_spans(draw: st.DrawFn) -> list[Span]:
    return [
        Span(
            begin,
            begin + draw(st.floats(-5, 300)),
            draw(labels),
            draw(st.sampled_from(["", "job_hang", "nan_loss"])),
            (float(draw(st.integers(0, 3))), draw(st.floats(0, 9))),
            draw(st.floats(0, 400)),
        )
        for begin in draw(st.lists(times, max_size=12))
    ]


@given(any_spans(), times, times)
def test_phases_and_productive_time_add_up_to_the_wall_clock_exactly(
    spans: list[Span], begin: float, end: float
) -> None:
    """Whatever overlaps whatever, to the microsecond."""
    found = account(spans, begin, end)
    assert found.productive_us + found.zero_us + sum(row.us for row in found.lost) == found.wall_us
    assert found.wall_us == max(0, round(end * 1e6) - round(begin * 1e6))
    assert all(row.us > 0 for row in found.lost)
    assert found.productive_us >= 0
    assert 0 <= found.worst_us <= found.wall_us - found.productive_us


@given(any_spans(), st.floats(0, 500), st.floats(0, 500), st.floats(0, 500))
def test_two_halves_make_the_whole(spans: list[Span], begin: float, one: float, two: float) -> None:
    """Cutting the time anywhere changes nothing but the rounding of the stalls."""
    whole = account(spans, begin, begin + one + two)
    left, right = account(spans, begin, begin + one), account(spans, begin + one, begin + one + two)
    assert abs(left.wall_us + right.wall_us - whole.wall_us) <= 1
    assert abs(left.productive_us + right.productive_us - whole.productive_us) <= 2 * len(spans) + 2


@given(any_spans(), st.randoms())
def test_a_greater_priority_wins_in_any_order(spans: list[Span], random: Any) -> None:
    """One span over everything decides alone; the order of the rest does not matter when none ties."""
    top = Span(0.0, 100.0, LostPhase.SWAPPING, "job_hang", (9.0,))
    assert account([*spans, top], 0.0, 100.0).lost[0].us == 100_000_000
    distinct = [span._replace(priority=(float(n),)) for n, span in enumerate(spans)]
    shuffled = random.sample(distinct, len(distinct))
    assert account(shuffled, 0.0, 1000.0) == account(distinct, 0.0, 1000.0)


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[list[Epoch], list[Stretch], list[Incident], list[Action], list[StateChange], float]:
    """A job's life as the ledger would have it: epochs ended by incidents with actions, holds in between."""
    epochs, stretches, incidents, actions, states = [], [], [], [], []
    at, reached = 0.0, 0
    kinds = ["pause", "check", "rung", "evict", "swap", "start", "verify", "something-new"]
    gap = st.floats(0, 30)
    for number in range(1, draw(st.integers(1, 4)) + 1):
        first, count = draw(st.integers(max(1, reached - 5), reached + 1)), draw(st.integers(0, 20))
        begun = at + draw(gap)
        ended = begun + count * draw(st.floats(0.1, 2))
        opened = epoch(
            number, at, (first, begun) if count else None, (first + count, ended) if count else None
        )
        cause = f"gpt-{number - 1}" if number > 1 and draw(st.booleans()) else None
        epochs.append(second(opened, incident_id=cause))
        if count and draw(st.booleans()):
            stall = draw(st.floats(0, 10))
            stretches.append(
                Stretch(
                    job="gpt",
                    epoch=number,
                    first_step=first,
                    last_step=first + count,
                    begun_at=begun,
                    ended_at=ended,
                    stall_s=stall,
                )
            )
        if draw(st.booleans()):
            states += [
                StateChange(job="gpt", state=JobState.PAUSED, at=ended),
                StateChange(job="gpt", state=JobState.RUNNING, at=ended + 1),
            ]
        detected = ended + draw(st.floats(-5, 30))
        t = detected
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=6)):
            done = t + draw(gap)
            actions.append(action(kind, t, done if draw(st.booleans()) else None, number, waited_s=draw(gap)))
            t = done + draw(st.floats(-3, 3))
        state = draw(st.sampled_from(list(IncidentState)))
        closed = None if state is IncidentState.OPEN else t + draw(gap)
        incidents.append(incident(number, detected, state=state, closed_at=closed, recovered_at=closed))
        at, reached = max(t, ended), max(reached, first + count)
    return epochs, stretches, incidents, actions, states, at + draw(gap)


@given(histories())
def test_any_history_adds_up(history: tuple[Any, ...]) -> None:
    """Overlapping incidents, clocks that run backwards, unknown actions: productive + at zero + lost = wall."""
    epochs, stretches, incidents, actions, states, now = history
    found: Ettr = ettr(epochs, now, stretches=stretches, incidents=incidents, actions=actions, states=states)
    ledger = found.account
    assert ledger.productive_us + ledger.zero_us + sum(row.us for row in ledger.lost) == ledger.wall_us
    assert 0 <= found.ettr <= 1
    assert found.worst_gap_s <= found.wall_s
