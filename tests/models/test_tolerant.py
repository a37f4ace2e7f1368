"""Messages of another version are read as far as possible."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.models import tolerant
from holdfast.models.agent import Heartbeat, Report, Start, Vitals

MARK = {"step": 3, "at": 10.0, "s": 0.5, "stall_s": 0.0}
BEAT: dict[str, Any] = {
    "machine": "m0",
    "incarnation": "i1",
    "at": 10.0,
    "jobs": [
        {"job": "gpt", "epoch": 1, "ranks": [{"rank": 0, "pid": 1, "phase": "running"}], "marks": [MARK]}
    ],
}


def beat(**changes: Any) -> bytes:
    """A heartbeat as it comes, other than usual."""
    return json.dumps(BEAT | changes).encode()


def with_mark(**changes: Any) -> bytes:
    """One whose second mark is other than usual."""
    jobs = [BEAT["jobs"][0] | {"marks": [MARK, MARK | changes]}]
    return beat(jobs=jobs)


def test_unknown_fields_of_a_newer_version_are_ignored_at_every_depth() -> None:
    """The rest is as it was sent."""
    newer = json.loads(with_mark(tokens=9))
    newer["region"] = {"a": 1}
    newer["jobs"][0]["ranks"][0]["mood"] = "good"
    found = tolerant.read(Heartbeat, json.dumps(newer).encode())
    assert found == tolerant.read(Heartbeat, with_mark())
    with pytest.raises(ValidationError):
        Heartbeat.model_validate(newer)


@pytest.mark.parametrize(
    "wrong",
    [{"s": None}, {"s": "NaN"}, {"step": 2**63}, {"step": -1}, {"at": None}, {"s": -1.0}, {"step": "many"}],
    ids=str,
)
def test_a_wrong_mark_is_left_out_and_named(wrong: dict[str, Any]) -> None:
    """Its neighbour stays, and so does all else."""
    found, left_out = tolerant.read_part(Heartbeat, with_mark(**wrong))
    assert [mark.step for mark in found.jobs[0].marks] == [3]
    assert found.jobs[0].ranks[0].rank == 0
    assert len(left_out) == 1
    assert "marks" in left_out[0]


def test_steps_have_64_bits() -> None:
    """A script may count tokens."""
    found, left_out = tolerant.read_part(Heartbeat, with_mark(step=2**63 - 1))
    assert found.jobs[0].marks[1].step == 2**63 - 1
    assert not left_out


def test_a_wrong_optional_part_is_left_out() -> None:
    """Vitals that cannot be read are no vitals."""
    found, left_out = tolerant.read_part(Heartbeat, beat(vitals={"gpu_busy": "much"}))
    assert found.vitals is None
    assert len(left_out) == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_reading_that_is_no_number_is_none(wrong: float) -> None:
    """A sensor may report so; its neighbours stay, and the agent that sends it does not end for it either."""
    found, left_out = tolerant.read_part(Heartbeat, beat(vitals={"gpu_busy": wrong, "sm_active": 0.5}))
    assert found.vitals == Vitals(sm_active=0.5) == Vitals(gpu_busy=wrong, sm_active=0.5)
    assert not left_out


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "NaN"])
def test_no_time_that_is_no_number_comes_in(wrong: object) -> None:
    """Neither in a heartbeat nor in a report."""
    for model in (Heartbeat, Report):
        with pytest.raises(ValidationError):
            tolerant.read(model, json.dumps({"machine": "m0", "incarnation": "i1", "at": wrong}).encode())


def test_an_epoch_that_the_ledger_cannot_hold_is_left_out() -> None:
    """PostgreSQL would refuse it each time that it is tried again, and what came after it would wait for ever."""
    jobs = [BEAT["jobs"][0], BEAT["jobs"][0] | {"epoch": 2**31}]
    found, left_out = tolerant.read_part(Heartbeat, beat(jobs=jobs))
    assert [run.epoch for run in found.jobs] == [1]
    assert len(left_out) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", beat(machine=None), beat(at="x")], ids=repr)
def test_what_says_nothing_is_refused(body: bytes) -> None:
    """Without a machine's name there is no heartbeat."""
    with pytest.raises(ValidationError):
        tolerant.read_part(Heartbeat, body)


@pytest.mark.parametrize(
    ("marks", "rounds"), [(5000, 0), (tolerant.MOST_LEFT_OUT + 1, tolerant.MOST_LEFT_OUT)]
)
def test_a_message_of_nothing_but_rubbish_ends(
    marks: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of wrong marks none is looked at: 64 rounds over all errors of 2 MB took minutes."""
    jobs = [BEAT["jobs"][0] | {"marks": [MARK | {"s": None}] * marks}]
    tried: list[object] = []

    def count(content: object, **options: Any) -> Heartbeat:
        tried.append(content)
        return validate(content, **options)

    validate = Heartbeat.model_validate
    monkeypatch.setattr(Heartbeat, "model_validate", count)
    with pytest.raises(ValidationError):
        tolerant.read_part(Heartbeat, beat(jobs=jobs))
    assert len(tried) == rounds


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    _JSON,
    st.sampled_from(["jobs", "vitals", "at", "jobs.0", "jobs.0.ranks", "jobs.0.marks.0", "jobs.0.times"]),
)
def test_whatever_stands_in_a_place_it_is_read_or_refused(value: Any, place: str) -> None:
    """Nothing else is raised, and what is read is a heartbeat of this machine."""
    content = json.loads(beat())
    inner: Any = content
    *way, last = [int(each) if each.isdigit() else each for each in place.split(".")]
    for each in way:
        inner = inner[each]
    inner[last] = value
    try:
        found, _ = tolerant.read_part(Heartbeat, json.dumps(content).encode())
    except ValidationError:
        return
    assert found.machine == "m0"


def test_commands_of_a_newer_gateway_are_read() -> None:
    """An agent does what it knows of."""
    start = {
        "job": "gpt",
        "epoch": 1,
        "incarnation": "i1",
        "script": "train.py",
        "code_version": "v1",
        "ranks": [0],
        "world_size": 1,
        "rendezvous": {"host": "h", "port": 1, "protocol": "quic"},
        "restore": {"compression": "zstd"},
        "priority": 3,
    }
    assert tolerant.read(Start, json.dumps(start).encode()).script == "train.py"
