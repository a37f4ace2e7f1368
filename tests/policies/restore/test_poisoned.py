"""Checkpoints that are given up as poisoned, and above all those that are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind, IncidentClass
from holdfast.policies.config.policy import Policy
from holdfast.policies.restore.poisoned import EpochRun, failure, find

LIMITS = Policy.load().restore.poisoned
NAN = "loss not finite"


def runs(*of: tuple[int, int, str]) -> list[EpochRun]:
    """Epochs from 1 on: (step it began with, newest step it completed, how it ended)."""
    return [
        EpochRun(epoch=number, start_step=start, reached=reached, failure=how)
        for number, (start, reached, how) in enumerate(of, 1)
    ]


def test_the_same_failure_after_two_restores_leaves_the_state_behind() -> None:
    """And with it what those epochs saved on the way."""
    found = find(runs((0, 103, NAN), (102, 103, NAN), (102, 103, NAN)), LIMITS)
    assert found.leave is not None
    assert (found.leave.step, found.leave.to_epoch) == (102, 3)
    assert f"({NAN})" in found.leave.why
    assert "within 10 steps of 2 restores" in found.leave.why


@pytest.mark.parametrize(
    "history",
    [
        [],
        runs((0, 103, NAN)),
        runs((0, 103, ""), (102, 103, ""), (102, 103, "")),  # kills, or machines that were evicted
        runs((0, 103, NAN), (102, 103, "KeyError"), (102, 103, "SIGSEGV")),  # other failures each time
        runs((0, 103, NAN), (102, 113, NAN), (102, 113, NAN)),  # later than those few steps
        runs((0, 103, NAN), (102, 150, ""), (102, 103, NAN), (102, 103, NAN)),  # it once led beyond them
        runs((0, 3, NAN), (0, 3, NAN), (0, 3, NAN)),  # from zero: there is no state
        runs((0, 103, NAN), (102, 103, NAN), (102, 103, NAN), (102, 130, "")),  # it goes well
    ],
    ids=[
        "no epoch",
        "no restore",
        "no failure of a state",
        "other failures",
        "late",
        "good once",
        "zero",
        "well",
    ],
)
def test_what_is_not_left_behind(history: list[EpochRun]) -> None:
    """Nothing is marked on less than the same failure, soon after, twice."""
    assert find(history, LIMITS).leave is None


def test_other_failures_each_time_count_after_one_restore_more() -> None:
    """Broken numbers are NaN once, and a crash in a kernel the next time. A kill from outside is none of them."""
    history = [(0, 103, NAN), (102, 103, "KeyError"), (102, 104, "SIGSEGV"), (102, 103, ""), (102, 103, NAN)]
    assert find(runs(*history[:4]), LIMITS).leave is None
    found = find(runs(*history), LIMITS)
    assert found.leave is not None
    assert found.leave.step == 102
    assert "failures (KeyError, SIGSEGV, loss not finite) within 10 steps of 3 restores" in found.leave.why


def test_after_one_restore_it_is_suspected_and_tried_once_more() -> None:
    """A reason for a retry, no mark."""
    found = find(runs((0, 103, NAN), (102, 103, NAN)), LIMITS)
    assert found.leave is None
    assert "of 1 restore: restored once more" in found.once_more


def test_a_kill_in_between_does_not_clear_it() -> None:
    """A failure of a state stays on record."""
    assert (
        find(runs((0, 103, NAN), (102, 103, NAN), (102, 102, ""), (102, 103, NAN)), LIMITS).leave is not None
    )


def test_down_the_list_and_bounded() -> None:
    """As many states as the policy allows; then the rest of the ladder."""
    history = [(0, 104, NAN)]
    for left in range(LIMITS.most):
        history += [(103 - left, 104, NAN)] * 2
        found = find(runs(*history), LIMITS)
        assert found.leave is not None
        assert found.leave.step == 103 - left
        assert f"({left + 1} of at most {LIMITS.most})" in found.leave.why
    history += [(80, 85, NAN)] * 2
    found = find(runs(*history), LIMITS)
    assert found.leave is None
    assert "3 states were abandoned already (steps 103, 102, 101)" in found.spent


def test_new_ground_restarts_the_count() -> None:
    """A job that has come well beyond has its states back."""
    history = [(0, 104, NAN)] + [(103 - left, 104, NAN) for left in range(LIMITS.most) for _ in range(2)]
    history += [(100, 300, NAN), (299, 300, NAN), (299, 300, NAN)]
    found = find(runs(*history), LIMITS)
    assert found.leave is not None
    assert found.leave.step == 299


FAILURES = st.sampled_from(["", NAN, "KeyError", "SIGSEGV"])
RUNS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), FAILURES), max_size=12).map(
    lambda found: runs(*((start, start + more, how) for start, more, how in found))
)


@given(RUNS)
def test_what_once_led_beyond_is_never_marked(history: list[EpochRun]) -> None:
    """Whatever happened before and after."""
    if (leave := find(history, LIMITS).leave) is not None:
        of_it = [run for run in history if run.start_step == leave.step]
        assert all(run.reached - run.start_step <= LIMITS.within_steps for run in of_it)
        same = sum(run.failure == history[-1].failure for run in of_it)
        assert same >= LIMITS.restores or sum(bool(run.failure) for run in of_it) > LIMITS.restores


@given(
    states=st.lists(st.integers(1, 500), min_size=1, max_size=20, unique=True),
    bad=st.integers(1, 500),
    how=st.sampled_from([NAN, "KeyError"]),
)
def test_the_list_shrinks_until_a_good_state_or_the_bound(states: list[int], bad: int, how: str) -> None:
    """States from ``bad`` on are poisoned: each is restored twice at most, none comes again, and it comes to an end."""
    left, history = sorted(states), runs((0, max(states) + 1, how))
    marked: list[int] = []
    for _ in range(2 * (LIMITS.most + 2)):
        if not left or left[-1] < bad:
            break
        step = left[-1]
        history.append(EpochRun(epoch=len(history) + 1, start_step=step, reached=step + 1, failure=how))
        found = find(history, LIMITS)
        if found.leave is not None:
            marked.append(found.leave.step)
            left = [each for each in left if each < found.leave.step]
        elif found.spent:
            break
    else:
        raise AssertionError(f"no end: {history}")
    assert marked == sorted(marked, reverse=True)
    assert len(marked) <= LIMITS.most
    assert all(step >= bad for step in marked)


def rank_exit(**evidence: Any) -> Alert:
    return Alert(kind=AlertKind.RANK_EXIT, job="gpt", rank=3, epoch=2, at=1.0, evidence=evidence)


CRASH = IncidentClass.JOB_CRASH


@pytest.mark.parametrize(
    ("incident_class", "alert", "evicted", "description"),
    [
        (CRASH, rank_exit(error_type="KeyError"), False, "KeyError"),
        (IncidentClass.USER_CODE_ERROR, rank_exit(error_type="KeyError"), False, "KeyError"),
        (
            CRASH,
            rank_exit(error_type="RuntimeError", pattern="cuda_assert"),
            False,
            "RuntimeError (cuda_assert)",
        ),
        (CRASH, rank_exit(signal="SIGSEGV"), False, "SIGSEGV"),
        (CRASH, rank_exit(exit_code=3), False, "exit status 3"),
        (CRASH, rank_exit(signal="SIGKILL"), False, ""),
        (CRASH, rank_exit(signal="SIGTERM"), False, ""),
        (CRASH, rank_exit(error_type="KeyError"), True, ""),
        (CRASH, rank_exit(error_type="KeyError", unloadable="KeyError: 'x'"), False, ""),
        (CRASH, rank_exit(error_type="RuntimeError", cascade=True), False, ""),
        (IncidentClass.MACHINE_FAULT, rank_exit(error_type="KeyError"), False, ""),
        (IncidentClass.NETWORK_FAULT, rank_exit(error_type="KeyError"), False, ""),
        (
            IncidentClass.NAN_LOSS,
            Alert(kind=AlertKind.NON_FINITE, at=1.0, evidence={"metric": "grad_norm"}),
            False,
            "grad_norm not finite",
        ),
        (IncidentClass.SILENT_CORRUPTION, Alert(kind=AlertKind.METRIC_JUMP, at=1.0), False, "loss jump"),
    ],
)
def test_how_an_epoch_ended(
    incident_class: IncidentClass, alert: Alert, evicted: bool, description: str
) -> None:
    """The same answer is the same failure; none, where no state is to blame."""
    assert failure(incident_class, [alert], evicted) == description
