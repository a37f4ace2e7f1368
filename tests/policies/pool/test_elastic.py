"""Sizes of elastic jobs: what goes when machines are short, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.models.job import JobSpec
from holdfast.policies.pool.elastic import Shrunk, first, grown, largest, shrink


def job(machines: Any, per: int = 2, **parallelism: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "gpt",
            "script": "train.py",
            "machines": machines,
            "ranks_per_machine": per,
            "parallelism": parallelism,
        }
    )


def test_the_job_file_names_the_sizes() -> None:
    """It starts with what it wants; most is what it wants, where nothing else is written."""
    spec = job({"min": 2, "want": 4})
    assert (spec.machines, spec.sizes) == (4, (2, 4, 4))
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert job(4).sizes == (4,)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"min": 5, "want": 4}, "min = 5, want = 4, max = 4"),
        ({"want": 4}, "elastic.min"),
        ({"min": 1, "want": 3, "most": 3}, "elastic.most"),
        ({"min": 3, "want": 4}, "does not divide the 6 ranks"),
        ({"min": 2, "want": 4, "start": 3}, "does not divide the 6 ranks"),
        ({"min": 2, "want": 4, "max": 6, "start": 6}, "start = 6: expected 2 to 4, from min to want"),
    ],
)
def test_wrong_sizes_are_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        job(sizes, tp=2, pp=2)


def test_a_size_outside_of_those_in_the_job_file_is_refused() -> None:
    with pytest.raises(ValueError, match="machines = 1: expected 2 to 4, as the job file says"):
        job({"min": 2, "want": 4}).resized(1)


def test_a_slow_start_begins_small_and_grows() -> None:
    """With what stands by where that is less; a size that a person asks for ends it."""
    spec = job({"min": 1, "want": 4, "start": 2})
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert [first(spec, standbys) for standbys in (0, 1, 2, 9)] == [0, 1, 2, 2]
    assert first(job({"min": 1, "want": 4}), 9) == 4
    assert first(job(4), 3) == 0
    begun = spec.resized(2)
    assert grown(begun, standbys=1) == 3
    assert grown(begun, standbys=9) == 4
    assert grown(begun.resized(1, wanted=True), standbys=9) == 1


def test_a_size_that_is_asked_for_is_the_wanted_one() -> None:
    """Else the job would grow back at once."""
    spec = job({"min": 1, "want": 4})
    assert grown(spec.resized(2), standbys=9) == 4
    assert grown(spec.resized(2, wanted=True), standbys=9) == 2


@pytest.mark.parametrize(
    ("lacking", "standbys", "left"),
    [
        ({1}, 0, Shrunk(machines=3, dropped=(1,))),
        ({1}, 1, None),
        ({0, 3}, 1, Shrunk(machines=3, dropped=(3,))),
        ({0, 1}, 0, Shrunk(machines=2, dropped=(0, 1))),
        ({0, 1, 2}, 0, None),
    ],
)
def test_slots_that_no_standby_fills_are_dropped(
    lacking: set[int], standbys: int, left: Shrunk | None
) -> None:
    assert shrink(job({"min": 2, "want": 4}), frozenset(lacking), standbys) == left


def test_replicas_stay_whole() -> None:
    """A replica of tp 2 x pp 2 takes two machines: with one lost, its neighbour has no part in the job either."""
    assert shrink(job({"min": 2, "want": 6}, tp=2, pp=2), frozenset({1}), 0) == Shrunk(
        machines=4, dropped=(1, 5)
    )


def test_a_job_of_one_size_does_not_shrink() -> None:
    assert shrink(job(4), frozenset({1}), 0) is None
    assert largest(job(4), 3) == 0
    assert largest(job(4), 9) == 4


@given(
    low=st.integers(1, 6),
    more=st.integers(0, 6),
    tp=st.sampled_from([1, 2, 4]),
    data=st.data(),
)
def test_whatever_is_short_the_size_is_allowed_and_served(
    low: int, more: int, tp: int, data: st.DataObject
) -> None:
    spec = job({"min": low, "want": low + more}, per=4, tp=tp)
    lacking = data.draw(st.frozensets(st.integers(0, spec.machines - 1), min_size=1))
    standbys = data.draw(st.integers(0, spec.machines))
    found = shrink(spec, lacking, standbys)
    if found is None:
        assert standbys >= len(lacking) or spec.machines - len(lacking) + standbys < low
        return
    left = [slot for slot in range(spec.machines) if slot not in found.dropped]
    assert len(left) == found.machines == spec.resized(found.machines).machines
    assert sum(slot in lacking for slot in left) <= standbys
    assert low <= found.machines < spec.machines
