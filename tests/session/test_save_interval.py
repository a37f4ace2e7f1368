"""The save interval, from the times of steps with and without a save beside them."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent import wire
from holdfast.session.save_interval import KNOWN_STEPS, LONGEST_S, LOOKING_CALLS, STALE_STEPS, SaveInterval
from tests.session.conftest import MakeAgent
from tests.session.small import session_of, training


def train(
    interval: SaveInterval, saves: int, *, step_s: float, save_s: float, steps_per_call: int = 1
) -> list[int]:
    """Save so many times; return the calls between them. A save lasts for part of one step."""
    found = []
    for _ in range(saves):
        interval.called()
        interval.saves(planned=False)
        found.append(interval.calls)
        for number in range(found[-1] * steps_per_call):
            if number and number % steps_per_call == 0:
                interval.called()
            interval.step(step_s + (0 if number else save_s), beside=number == 0)
    return found


def test_without_a_limit_every_call_saves() -> None:
    """As ever."""
    assert set(train(SaveInterval(None), 20, step_s=0.1, save_s=10.0)) == {1}


@pytest.mark.parametrize(
    ("step_s", "save_s", "share", "calls"),
    [
        (0.15, 0.024, 0.01, 16),  # eight ranks on two processors
        (0.15, 0.024, 0.1, 2),
        (10.0, 0.05, 0.01, 1),  # beside a GPU
        (1.0, 90.0, 0.01, 600),  # no more than ten minutes without a save
    ],
)
def test_saves_take_at_most_that_share(step_s: float, save_s: float, share: float, calls: int) -> None:
    """And are made as often as that allows."""
    found = train(SaveInterval(share), 20, step_s=step_s, save_s=save_s)
    assert found[0] == LOOKING_CALLS
    assert found[-1] == pytest.approx(calls, abs=1)


def test_scripts_that_save_now_and_then_save_at_fewer_of_their_calls() -> None:
    """A call after each 50 steps of 0.1 s, a save costs 0.4 s: 40 s apart."""
    found = train(SaveInterval(0.01), 10, step_s=0.1, save_s=0.4, steps_per_call=50)
    assert found[-1] == pytest.approx(8, abs=1)


def test_one_long_step_decides_nothing() -> None:
    """An evaluation beside a save."""
    interval = SaveInterval(0.01)
    train(interval, 8, step_s=0.1, save_s=0.01)
    before = interval.calls
    interval.saves(planned=False)
    interval.step(60.0, beside=True)
    interval.saves(planned=False)
    assert interval.calls == pytest.approx(before, abs=1)


def test_a_save_that_comes_with_a_plan_is_no_measure() -> None:
    """It takes far longer than others."""
    interval = SaveInterval(0.01)
    interval.saves(planned=True)
    interval.step(5.0, beside=True)
    for _ in range(KNOWN_STEPS):
        interval.step(0.1, beside=False)
    interval.saves(planned=False)
    assert interval.calls == 1


def test_what_a_step_takes_is_measured_again() -> None:
    """Steps grow longer with the context, or shorter; where each has a save beside it none shows that."""
    interval = SaveInterval(0.5)
    train(interval, 10, step_s=1.0, save_s=0.1)
    assert interval.calls == 1
    for _ in range(STALE_STEPS + 1):
        interval.saves(planned=False)
        interval.step(0.1, beside=True)
    assert interval.calls == LOOKING_CALLS


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.booleans(), st.booleans(), st.booleans()), max_size=80),
    st.floats(1e-4, 0.99),
)
def test_it_is_a_number_of_calls_whatever_steps_take(
    steps: list[tuple[float, bool, bool, bool]], share: float
) -> None:
    """Steps of no length, saves that seem to make them shorter."""
    interval = SaveInterval(share)
    for seconds, beside, called, saves in steps:
        if called:
            interval.called()
        if saves:
            interval.saves(planned=False)
        interval.step(seconds, beside=beside)
        assert interval.calls >= 1
        shortest_s = max(1e-6, min(each for each, *_ in steps))
        assert interval.calls <= max(LOOKING_CALLS, math.ceil(LONGEST_S / shortest_s))


@pytest.mark.torch
@pytest.mark.parametrize("patience_s", ["", "30"])
def test_saves_that_cost_too_much_come_less_often(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, patience_s: str
) -> None:
    """`max_overhead: 0.1`, where a save takes as long as a step; a step that ranks are held at is saved."""
    agent = make_agent()
    session = session_of(agent, **{wire.ENV_MAX_OVERHEAD: "0.1", wire.ENV_PATIENCE: patience_s})
    state = training()
    session.restore(state)
    measured = SaveInterval.step

    def step_of(interval: SaveInterval, _seconds: float, *, beside: bool) -> None:
        measured(interval, 0.04 if beside else 0.02, beside=beside)

    monkeypatch.setattr(SaveInterval, "step", step_of)
    for step in range(1, 101):
        if step == 91:
            agent.controls[0].hold_at_step = step
            threading.Timer(0.2, setattr, (agent.controls[0], "hold_at_step", wire.NO_HOLD)).start()
        session.step(step)
        session.checkpoint(state)
        session.wait()
        assert session.flush(20)
    agent.wait_for(lambda: session.counts.common == len(agent.of("common")))
    saved = [each["step"] for each in agent.of("common")]
    # Few are saved until it is known how long steps take.
    assert saved == [1, 5, 9, 13, 23, 33, 43, 53, 63, 73, 83, 91]
    assert session.counts.skipped == 0, "they are not missed"
