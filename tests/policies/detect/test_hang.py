"""The hang vote: quick on a real hang, silent otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import RankPhase, RankState
from holdfast.models.job import JobState
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.hang import HangVote, rules_out, vote, window_s
from holdfast.policies.detect.hang_facts import HangFacts, facts

HANG = Policy.load().hang


def rank(number: int = 0, **changes: Any) -> HangFacts:
    base: dict[str, Any] = {
        "rank": number,
        "machine": f"m{number // 2}",
        "silent_s": 6.0,
        "cpu_cores": 0.01,
        "process_state": "S",
        "steps_done": 40,
        "step_s": 0.2,
    }
    return HangFacts(**{**base, **changes})


def ranks(count: int = 8, **changes: Any) -> list[HangFacts]:
    return [rank(number, **changes) for number in range(count)]


def ended(number: int, **changes: Any) -> HangFacts:
    return rank(
        number, phase=RankPhase.EXITED, exit_code=0, process_state="", **{"silent_s": 800.0, **changes}
    )


def judged(listed: list[HangFacts], state: JobState = JobState.RUNNING) -> HangVote:
    return vote(listed, HANG, job_state=state)


def test_a_stopped_rank_is_a_hang_within_eight_seconds() -> None:
    """At 0.2 s steps: silent for the window, and one process in state T."""
    listed = [*ranks(7, cpu_cores=0.5), rank(7, process_state="T")]
    found = judged(listed)
    assert found.hang
    assert set(found.signals) == {"silent", "stuck"}
    assert found.window_s <= 8
    assert found.suspects == found.stopped == (7,)
    assert judged(listed[:7] + ranks(1, silent_s=0.1)).stopped == ()


def test_a_deadlock_is_silent_and_idle() -> None:
    """No process is stopped, none works."""
    found = judged(ranks())
    assert found.hang
    assert set(found.signals) == {"silent", "idle"}
    assert found.suspects == ()


def test_a_rank_in_device_wait_counts_as_stuck() -> None:
    """State D: a mount or a device does not answer."""
    assert judged([*ranks(7, cpu_cores=1.0), rank(7, process_state="D", cpu_cores=0.0)]).hang


def test_one_busy_rank_among_waiting_ones_hangs_only_after_the_collective_limit() -> None:
    """It may be in an undeclared evaluation; after 30 s it is a loop."""
    early = [*ranks(7, silent_s=20.0), rank(7, silent_s=20.0, cpu_cores=1.0)]
    late = [*ranks(7, silent_s=31.0), rank(7, silent_s=31.0, cpu_cores=1.0)]
    assert not judged(early).hang
    found = judged(late)
    assert found.hang
    assert found.suspects == (7,)


def test_busy_waiting_collectives_need_unchanged_stacks() -> None:
    """NCCL kernels keep a core busy: silence alone is no proof, equal stacks are."""
    assert not judged(ranks(cpu_cores=1.0, silent_s=40.0)).hang
    assert judged(ranks(cpu_cores=1.0, silent_s=40.0, stacks_unchanged=True)).hang


def test_gpus_that_spin_without_traffic_are_idle() -> None:
    """Busy processors, busy GPUs, and no bytes on any port: all wait inside a collective, or evaluate for a while."""
    spinning = {"cpu_cores": 1.0, "gpu_busy": 1.0, "traffic_bytes_s": 0.0, "silent_s": HANG.undeclared_s + 1}
    found = judged(ranks(**spinning))
    assert found.hang
    assert set(found.signals) == {"silent", "idle"}
    for other in ({"traffic_bytes_s": 5e6}, {"gpu_busy": 0.6}, {"traffic_bytes_s": None}, {"gpu_busy": None}):
        assert not judged([*ranks(7, **spinning), rank(7, **(spinning | other))]).hang
    for silent_s in (1.0, 6.0, HANG.undeclared_s):
        assert not judged(ranks(**(spinning | {"silent_s": silent_s}))).hang
    assert judged(ranks(**(spinning | {"silent_s": 6.0, "stacks_unchanged": True}))).hang


def test_a_rank_that_does_not_end_hangs_after_a_while() -> None:
    """All others have ended: it waits for a message that no rank will send. No machine is accused for that."""
    others = [ended(number, silent_s=901.0) for number in range(7)]
    found = judged([*others, rank(7, silent_s=901.0)])
    assert found.hang
    assert found.window_s == HANG.end_s
    assert found.suspects == ()
    assert not judged([*others, rank(7, silent_s=901.0, cpu_cores=1.0)]).hang


def test_a_rank_that_is_stopped_at_the_end_hangs_soon() -> None:
    """Whatever it had left to do: a process in state T does not do it."""
    listed = [
        *(ended(number, silent_s=12.0) for number in range(7)),
        rank(7, silent_s=12.0, process_state="T", stopped_s=11.0),
    ]
    found = judged(listed)
    assert found.hang
    assert found.suspects == (7,)


def test_the_rank_that_is_behind_is_suspected() -> None:
    """It did not complete the step that the others did."""
    found = judged([*ranks(7), rank(7, steps_done=39)])
    assert found.suspects == (7,)


@pytest.mark.parametrize(
    "normal",
    [
        pytest.param(ranks(silent_s=0.3), id="a step just ended"),
        pytest.param([*ranks(7), rank(7, silent_s=0.1)], id="one rank still makes steps"),
        pytest.param(ranks(cpu_cores=0.9), id="a slow but busy step"),
        pytest.param(ranks(silent_s=60.0, activity="eval"), id="idle in evaluation"),
        pytest.param(
            [*ranks(7, silent_s=60.0), rank(7, silent_s=60.0, activity="eval")], id="one rank evaluates"
        ),
        pytest.param(ranks(silent_s=60.0, activity="checkpoint"), id="checkpoint upload"),
        pytest.param(ranks(silent_s=60.0, activity="checkpoint", process_state="D"), id="checkpoint to disk"),
        pytest.param(ranks(silent_s=300.0, activity="compile"), id="compiling"),
        pytest.param(ranks(silent_s=300.0, steps_done=0, step_s=0.0), id="the first step"),
        pytest.param([*ranks(7), rank(7, steps_done=0)], id="first step of one rank"),
        pytest.param(ranks(step_s=2.0, silent_s=15.0), id="a job of slow steps"),
        pytest.param(ranks(longest_gap_s=12.0, silent_s=15.0), id="regular long gaps"),
        pytest.param(ranks(paused=True, silent_s=500.0), id="held at a boundary"),
        pytest.param([*ranks(7), rank(7, phase=RankPhase.EXITED, exit_code=1)], id="a rank failed"),
        pytest.param(
            [*ranks(1, silent_s=800.0, process_state="D"), *(ended(number) for number in range(1, 8))],
            id="rank 0 writes the weights, all others have ended",
        ),
        pytest.param([ended(number) for number in range(8)], id="the job is over"),
        pytest.param([], id="no rank is known"),
    ],
)
def test_no_false_alarm(normal: list[HangFacts]) -> None:
    """Jobs that look quiet and are well."""
    assert not judged(normal).hang


seconds = st.one_of(st.just(0.0), st.floats(0.0, 700.0))
any_rank = st.builds(
    rank,
    st.integers(0, 9),
    silent_s=seconds,
    step_s=seconds,
    longest_gap_s=seconds,
    stopped_s=seconds,
    cpu_cores=st.sampled_from((0.0, 1.0)),
    process_state=st.sampled_from("RSTD"),
    steps_done=st.integers(0, 2),
    activity=st.sampled_from(("", "eval")),
    stacks_unchanged=st.booleans(),
    phase=st.sampled_from((RankPhase.RUNNING, RankPhase.EXITED)),
    exit_code=st.sampled_from((None, 0)),
)


@given(st.lists(any_rank, min_size=1, max_size=6))
def test_a_rank_that_rules_a_hang_out_is_right_whatever_the_others_do(listed: list[HangFacts]) -> None:
    """The short way and the vote never disagree: where it is taken, no rank is silent for too long."""
    if any(rules_out(each.silent_s, each.step_s, each.longest_gap_s, HANG) for each in listed):
        found = judged(listed)
        assert not found.hang
        assert "silent" not in found.signals


@pytest.mark.parametrize("silent_s", [0.0, 0.3, 5.9])
def test_ranks_that_train_are_ruled_out(silent_s: float) -> None:
    """At steps of two seconds all of these are usual."""
    assert rules_out(silent_s, 2.0, 0.0, HANG)
    assert not rules_out(1e6, 2.0, 0.0, HANG)


@pytest.mark.parametrize("state", [s for s in JobState if s is not JobState.RUNNING])
def test_a_job_that_does_not_run_does_not_hang(state: JobState) -> None:
    """Paused, recovering, done."""
    found = judged(ranks(silent_s=900.0), state)
    assert not found.hang
    assert state.value in found.exempt


def test_exempt_phases_have_limits_of_their_own() -> None:
    """An evaluation that never ends is found too."""
    assert "eval" in judged(ranks(silent_s=60.0, activity="eval")).exempt
    assert judged(ranks(silent_s=HANG.activity_limits_s["eval"] + 1, activity="eval")).hang
    assert judged(ranks(silent_s=HANG.first_step_s + 1, steps_done=0)).hang


def test_a_process_that_stays_stopped_hangs_whatever_it_was_doing() -> None:
    """Stopped in the first step or in evaluation: it does not go on by itself."""
    for exempt in ({"steps_done": 0}, {"activity": "eval"}):
        short = [
            *ranks(7, silent_s=60.0, **exempt),
            rank(7, silent_s=60.0, process_state="T", stopped_s=1.0, **exempt),
        ]
        long = [
            *ranks(7, silent_s=60.0, **exempt),
            rank(7, silent_s=60.0, process_state="T", stopped_s=11.0, **exempt),
        ]
        assert not judged(short).hang
        assert judged(long).hang
        assert judged(long).exempt == ""


def test_the_window_follows_the_job() -> None:
    """Ten steps, or twice the longest gap, within 5 to 300 s; without steps the longest."""
    assert window_s(ranks(step_s=0.2), HANG) == 5.0
    assert window_s(ranks(step_s=2.0), HANG) == 20.0
    assert window_s(ranks(step_s=0.2, longest_gap_s=15.0), HANG) == 30.0
    assert window_s(ranks(step_s=90.0), HANG) == 300.0
    assert window_s(ranks(step_s=0.0), HANG) == 300.0
    assert window_s([], HANG) == 300.0


def test_facts_are_taken_from_two_heartbeats() -> None:
    """Processor use is the growth between them."""
    state = RankState(
        rank=3,
        pid=1,
        phase=RankPhase.RUNNING,
        step_at=90.0,
        cpu_s=12.0,
        process_state="T",
        steps_done=4,
        step_s=0.3,
    )
    found = facts("m1", state, 100.0, earlier=(96.0, 10.0), stopped_since=97.0)
    assert (found.silent_s, found.cpu_cores, found.stopped_s) == (10.0, 0.5, 3.0)
    assert facts("m1", state, 100.0).cpu_cores == 1.0
    assert facts("m1", state, 80.0, earlier=(80.0, 1.0)).silent_s == 0.0
