"""The signature by which two failures count as the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind, Incident, IncidentClass, IncidentState
from holdfast.policies.classify.signature import (
    Position,
    Signature,
    of,
    ranks_with_one_frame,
    same,
    same_step,
)
from tests.policies.make import NOW, alert, rank_exit


def incident(*alerts: Alert, epoch: int = 3) -> Incident:
    return Incident(
        id="gpt-1",
        job="gpt",
        incident_class=IncidentClass.JOB_CRASH,
        state=IncidentState.OPEN,
        epoch=epoch,
        alerts=alerts,
        detected_at=NOW,
        opened_at=NOW,
    )


def failed(what: str, rank: int | None = None, step: int | None = None, frame: str = "") -> Signature:
    machine = None if rank is None else f"m{rank // 2}"
    return Signature(what=what, rank=rank, machine=machine, frame=frame, position=Position(step=step))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (failed("SIGKILL", 3), failed("SIGKILL", 3), True),
        (failed("SIGKILL", 3), failed("SIGKILL", 2), False),  # on the same machine
        (failed("SIGKILL", 3, 20), failed("SIGKILL", 5, 20), False),  # a step is no evidence about a kill
        (failed("SIGKILL", 3), failed("SIGSEGV", 3), False),
        (failed("SIGSEGV", 3, 20), failed("SIGSEGV", 5, 24), False),
        (failed("SIGSEGV", 3, 20), failed("SIGSEGV", 5, 21), True),  # the same data
        (failed("ValueError", 3, 20, "a.py:1"), failed("ValueError", 5, 90, "a.py:1"), True),
        (failed("ValueError", 3, 20, "a.py:1"), failed("ValueError", 3, 20, "b.py:7"), False),
        (failed("not finite", None, 20), failed("not finite", None, 80), True),
        (failed("", 3), failed("SIGKILL", 5), True),  # no difference is known
    ],
)
def test_same_failures(one: Signature, other: Signature, expected: bool) -> None:
    """By what and where."""
    assert same(one, other) is expected
    assert same(other, one) is expected


def test_machines_of_one_switch_are_one_place() -> None:
    """Kills on both of its machines are one failure: it may be the switch."""
    switches = {"leaf-1": ["m0", "m1"]}
    one, other, third = (
        of(incident(rank_exit(rank, signal="SIGKILL")), None, switches) for rank in (0, 3, 5)
    )
    assert (one.domain, third.domain) == ("leaf-1", "")
    assert same(one, other)
    assert not same(one, third)


def test_the_only_machine_of_a_job_distinguishes_nothing() -> None:
    """Else three kills of different ranks on one machine were one failure."""
    one, other = (of(incident(rank_exit(rank, signal="SIGKILL")), one_machine=True) for rank in (0, 1))
    assert one.machine is None
    assert not same(one, other)


@pytest.mark.parametrize(
    ("alerts", "what", "rank"),
    [
        ([rank_exit(1, signal="SIGSEGV"), rank_exit(0, cascade=True)], "SIGSEGV", 1),
        ([rank_exit(1, error_type="torch.cuda.OutOfMemoryError")], "OutOfMemoryError", 1),
        ([rank_exit(1)], "exit status 1", 1),
        (
            [alert(AlertKind.NON_FINITE, rank=1), rank_exit(1, error_type="AssertionError")],
            "not finite",
            None,
        ),
        ([alert(AlertKind.METRIC_JUMP, rank=1, evidence={"metric": "grad_norm"})], "grad_norm jump", None),
        ([alert(AlertKind.GPU_LOST, machine="m1")], "gpu_lost", None),
        ([rank_exit(0, cascade=True)], "", None),
        ([], "", None),
    ],
)
def test_what_an_incident_says(alerts: list[Alert], what: str, rank: int | None) -> None:
    """The root, not its cascading failures; numbers belong to no rank."""
    found = of(incident(*alerts))
    assert (found.what, found.rank) == (what, rank)


def test_alerts_of_a_later_epoch_are_another_failure() -> None:
    """The incident is named by what it was opened for."""
    later = rank_exit(5, signal="SIGSEGV").model_copy(update={"epoch": 4})
    assert of(incident(later, rank_exit(1, signal="SIGKILL"))).what == "SIGKILL"


def test_ranks_that_raise_the_same_in_one_frame() -> None:
    """The most frequent frame counts; ranks without a frame and cascading failures do not."""
    frame: dict[str, Any] = {"error_type": "ValueError", "user_frame": "data.py:33 in read"}
    other = frame | {"user_frame": "model.py:7 in forward"}
    alerts = [rank_exit(0, **frame), rank_exit(5, **frame), rank_exit(2, **other), rank_exit(3, cascade=True)]
    assert ranks_with_one_frame(alerts) == (0, 5)
    assert ranks_with_one_frame([rank_exit(0)]) == ()


SIGNATURES = st.builds(
    Signature,
    what=st.sampled_from(["", "SIGKILL", "SIGSEGV", "ValueError"]),
    frame=st.sampled_from(["", "a.py:1"]),
    rank=st.none() | st.integers(0, 3),
    machine=st.sampled_from([None, "m0", "m1"]),
    domain=st.sampled_from(["", "leaf-1"]),
    position=st.builds(Position, step=st.none() | st.integers(0, 5)),
)


@given(SIGNATURES, SIGNATURES)
def test_sameness_is_symmetric_and_reflexive(one: Signature, other: Signature) -> None:
    """Whatever is known of them."""
    assert same(one, other) == same(other, one)
    assert same_step(one, other) == same_step(other, one)
    placed = one.rank is not None or one.machine is not None
    assert same(one, one) or not placed


@pytest.mark.parametrize(
    ("kind", "expected"), [(AlertKind.NON_FINITE, 20), (AlertKind.METRIC_JUMP, 18), (AlertKind.RANK_EXIT, 21)]
)
def test_the_position_is_the_last_step_before_the_failure(kind: AlertKind, expected: int) -> None:
    """A number that is not finite is one of its step's; a jump is reported after so many high steps in a row."""
    found = of(incident(alert(kind, rank=3, evidence={"step": 21})), Position(step=30), jump_steps=3)
    assert found.position.step == expected


def test_of_several_numbers_the_first_step_counts() -> None:
    """Ranks report in any order."""
    numbers = [alert(AlertKind.NON_FINITE, rank=rank, evidence={"step": 24 - rank}) for rank in (1, 3, 2)]
    assert of(incident(*numbers)).position.step == 20
