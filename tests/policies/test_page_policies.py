"""Computations of the status page: outliers, the ETTR curve, a rank's place and groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.history import Epoch, History, Stretch
from holdfast.models.job import Parallelism
from holdfast.policies.accounting import ettr
from holdfast.policies.accounting.ettr_series import series
from holdfast.policies.detect.phase_times import FEWEST, spread
from holdfast.policies.diagnose.groups import groups, groups_of, place_of

sizes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))


@given(sizes)
def test_places_and_groups_agree_with_the_numbering(size: tuple[int, int, int]) -> None:
    """Every rank has a place of its own, and its groups are those of all groups that hold it."""
    tp, pp, dp = size
    world, parallelism = tp * pp * dp, Parallelism(tp=tp, pp=pp)
    every = groups(world, parallelism)
    for rank in range(world):
        at = place_of(rank, world, parallelism)
        assert (at.pp * dp + at.dp) * tp + at.tp == rank
        assert groups_of(rank, world, parallelism) == [group for group in every if rank in group.ranks]


@given(st.lists(st.floats(0.9, 1.1), min_size=FEWEST, max_size=200), st.integers(0, 199))
def test_a_rank_twice_as_slow_stands_out_and_noise_does_not(values: list[float], at: int) -> None:
    """Whatever the others' noise within ten per cent."""
    at %= len(values)
    assert at not in spread([1.0] * len(values)).outliers
    values[at] = 3.0
    assert spread(values).outliers[:1] == (at,)


def test_no_figures_and_few_ranks_have_no_outliers() -> None:
    """NaN and None are ranks without a report."""
    assert spread([]).outliers == spread([None, None]).outliers == spread([1.0, 9.0, 1.0]).outliers == ()
    found = spread([1.0, None, 1.0, np.nan, 1.0, 1.0, 2.0])
    assert (found.outliers, found.median_s, found.worst_s) == ((6,), 1.0, 2.0)
    assert spread([1e-5] * 9 + [9e-5]).outliers == (), "tens of microseconds delay no one"


@given(
    st.lists(st.tuples(st.floats(1, 500), st.floats(0.1, 200)), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_the_curve_ends_at_the_jobs_ettr(parts: list[tuple[float, float]], points: int) -> None:
    """Its intervals add up: cut anyhow, the last point is the whole's ratio."""
    at, step, epochs, stretches = 1000.0, 0, [], []
    for number, (work, gap) in enumerate(parts, start=1):
        opened, begun = at, at + gap
        at = begun + work
        stretches.append(
            Stretch(
                job="j", epoch=number, first_step=step + 1, last_step=step + 10, begun_at=begun, ended_at=at
            )
        )
        epochs.append(
            Epoch(
                job="j",
                epoch=number,
                start_step=step,
                code_version="v",
                machines=(),
                reason="",
                opened_at=opened,
                first_step=step + 1,
                first_step_at=begun + work / 10,
                last_step=step + 10,
                last_step_at=at,
            )
        )
        step += 10
    history = History(epochs=tuple(epochs), stretches=tuple(stretches))
    curve = series(history, at, points)
    assert len(curve) == points
    assert curve[-1].total == pytest.approx(ettr.measure(history, at).ettr, abs=1e-4)
    assert all(0 <= point.interval <= 1 and 0 <= point.total <= 1 for point in curve)


def test_a_job_without_an_epoch_has_no_curve() -> None:
    """Nothing to draw is no error."""
    assert series(History(), 5.0) == []
