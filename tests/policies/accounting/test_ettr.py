"""Effective training time ratio."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RefusedError
from holdfast.models.history import Epoch, History
from holdfast.policies.accounting.ettr import CLOCK_SET_BACK, NO_STEPS, ettr, expected, sliding
from tests.policies.make import epoch


def test_a_run_without_faults_loses_only_its_start() -> None:
    """100 steps of 1 s after 10 s of starting."""
    found = ettr([epoch(1, 0.0, (1, 11.0), (100, 110.0))], 110.0)
    assert found.productive_s == pytest.approx(100.0)
    assert found.ettr == pytest.approx(100 / 110)
    assert (found.steps_total, found.steps_recomputed, found.restarts) == (100, 0, 0)
    assert found.worst_gap_s == pytest.approx(10.0)


def test_recomputed_steps_count_once() -> None:
    """Restart from step 40 after 50: ten steps are done again, and their time is lost."""
    rows = [epoch(1, 0.0, (1, 1.0), (50, 50.0)), epoch(2, 52.0, (41, 53.0), (100, 112.0))]
    found = ettr(rows, 112.0)
    assert (found.steps_total, found.steps_recomputed, found.restarts) == (100, 10, 1)
    assert found.productive_s == pytest.approx(100.0)
    assert found.recompute_s == pytest.approx(10.0)
    assert found.wall_s == 112.0
    assert found.worst_gap_s == pytest.approx(12.0)


def test_an_in_memory_restart_loses_no_step() -> None:
    """It goes on with the next step."""
    rows = [epoch(1, 0.0, (1, 1.0), (50, 50.0)), epoch(2, 51.0, (51, 52.0), (100, 101.0))]
    found = ettr(rows, 101.0)
    assert found.steps_recomputed == 0
    assert found.productive_s == pytest.approx(100.0)


def test_epochs_without_a_step_are_pure_loss() -> None:
    """A retry that failed at once."""
    rows = [
        epoch(1, 0.0, (1, 1.0), (10, 10.0)),
        epoch(2, 11.0, None, None),
        epoch(3, 15.0, (11, 21.0), (20, 30.0)),
    ]
    found = ettr(rows, 30.0)
    assert found.productive_s == pytest.approx(20.0)
    assert found.restarts == 2


def test_an_epoch_of_one_step_takes_the_usual_time_for_it() -> None:
    """Its own duration is not in the row, but cannot exceed the epoch's life."""
    rows = [epoch(1, 0.0, (1, 1.0), (11, 11.0)), epoch(2, 12.0, (12, 20.0), (12, 20.0))]
    assert ettr(rows, 20.0).productive_s == pytest.approx(12.0)
    lone = ettr([epoch(1, 0.0, (1, 5.0), (1, 5.0))], 5.0)
    assert (lone.steps_total, lone.productive_s) == (1, 0.0)


def test_an_epoch_that_only_recomputes_brings_nothing() -> None:
    """It died before it reached new ground."""
    rows = [epoch(1, 0.0, (1, 1.0), (50, 50.0)), epoch(2, 51.0, (41, 52.0), (45, 56.0))]
    found = ettr(rows, 56.0)
    assert (found.steps_total, found.steps_recomputed) == (50, 5)
    assert found.productive_s == pytest.approx(50.0)


def test_no_epochs_is_zero() -> None:
    """Before the first start."""
    assert ettr([], 10.0).ettr == 0.0
    assert sliding(History(), 10.0).ettr == 0.0
    assert ettr([epoch(1, 10.0, None, None)], 10.0).ettr == 0.0


def test_a_clock_set_back_before_the_job_began_measures_nothing() -> None:
    """Zero would look like a job that loses all its time."""
    rows = [epoch(1, 7200.0, (1, 7201.0), (50, 7250.0))]
    assert (ettr(rows, 7250.0).unmeasured, ettr(rows, 100.0).unmeasured) == ("", CLOCK_SET_BACK)
    assert sliding(History(epochs=tuple(rows)), 100.0).unmeasured == CLOCK_SET_BACK
    assert ettr([epoch(1, 0.0, None, None)], 10.0).unmeasured == NO_STEPS


def test_the_order_of_rows_does_not_matter() -> None:
    """Rows are sorted by epoch."""
    rows = [epoch(1, 0.0, (1, 1.0), (50, 50.0)), epoch(2, 52.0, (41, 53.0), (100, 112.0))]
    assert ettr(rows, 112.0) == ettr(rows[::-1], 112.0)


def test_the_sliding_hour_forgets() -> None:
    """An old stop does not weigh on the present."""
    rows = [epoch(1, 0.0, (1, 1.0), (10, 10.0)), epoch(2, 5000.0, (11, 5001.0), (10_010, 15_000.0))]
    history = History(epochs=tuple(rows))
    assert sliding(history, 15_000.0).ettr == pytest.approx(1.0)
    assert sliding(History(epochs=tuple(rows[:1])), 4_000.0).ettr == 0.0
    assert ettr(rows, 15_000.0).ettr < 0.7
    assert sliding(History(epochs=tuple(rows[:1])), 10.0).ettr == pytest.approx(1.0)


def test_the_expected_ratio_is_the_published_formula() -> None:
    """(1 - N r (u0 + dt/2)) / (1 + w/dt), r per day."""
    n, r, u0, dt, w = 1000, 0.00234, 300.0, 600.0, 5.0
    assert expected(n, r, u0, dt, w) == pytest.approx((1 - n * r / 86400 * (u0 + dt / 2)) / (1 + w / dt))
    assert expected(10**9, 1.0, u0, dt, w) == 0.0
    assert expected(0, 0.0, 0.0, 1.0, 0.0) == 1.0


@pytest.mark.parametrize(
    "arguments", [(1, 0.1, 1.0, 0.0, 1.0), (1, -0.1, 1.0, 1.0, 1.0), (-1, 0.1, 1.0, 1.0, 1.0)]
)
def test_impossible_figures_are_refused(arguments: tuple[int, float, float, float, float]) -> None:
    """Names them."""
    with pytest.raises(RefusedError, match="expected ETTR"):
        expected(*arguments)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Epoch], float, int]:
    """Epochs that each restart at or before the newest step; now; and the newest step."""
    rows, at, reached = [], 0.0, 0
    for number in range(1, draw(st.integers(1, 6)) + 1):
        first = draw(st.integers(max(1, reached - 5), reached + 1))
        steps = draw(st.integers(0, 20))
        begun = at + draw(st.floats(0.1, 30))
        ended = begun + steps * draw(st.floats(0.1, 2))
        rows.append(epoch(number, at, (first, begun), (first + steps, ended)))
        at, reached = ended + draw(st.floats(0, 5)), max(reached, first + steps)
    return rows, at, reached


@given(histories())
def test_ettr_is_a_ratio_and_every_step_counts_once(history: tuple[list[Epoch], float, int]) -> None:
    """Whatever the history."""
    rows, now, reached = history
    found = ettr(rows, now)
    done = sum((row.last_step or 0) - (row.first_step or 0) + 1 for row in rows)
    assert 0 <= found.ettr <= 1
    assert found.steps_total == reached
    assert found.steps_total + found.steps_recomputed == done
    assert found.productive_s + found.recompute_s <= found.wall_s + 1e-6
    assert 0 <= found.worst_gap_s <= found.wall_s + 1e-6
