"""Jobs without a Session are safe to host, and two more ways to find the ranks behind a hang."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import RankPhase, RankState
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.hang import vote
from holdfast.policies.detect.hang_facts import HangFacts, Learned, facts

HANG = Policy.load().hang
DAY = 86_400.0


def rank(number: int = 0, **changes: Any) -> HangFacts:
    """Of a plain job that runs for a day and logs."""
    base: dict[str, Any] = {
        "rank": number,
        "machine": f"m{number // 2}",
        "silent_s": DAY,
        "cpu_cores": 0.01,
        "process_state": "S",
        "reports": False,
        "log_silent_s": 5.0,
        "phase": RankPhase.STARTING,
    }
    return HangFacts(**{**base, **changes})


def ranks(count: int = 8, **changes: Any) -> list[HangFacts]:
    return [rank(number, **changes) for number in range(count)]


@pytest.mark.parametrize(
    "looks",
    [
        {"log_silent_s": None},
        {},
        {"stacks_unchanged": True},
        {"log_silent_s": DAY},
        {"log_silent_s": DAY, "cpu_cores": 1.0, "stacks_change": True},
        {"log_silent_s": DAY, "cpu_cores": 1.0, "stacks_unchanged": True},
        {"log_silent_s": HANG.plain_silent_s - 1, "stacks_unchanged": True},
        {"log_silent_s": DAY, "process_state": "D", "blocked_s": 60.0},
    ],
    ids=range(8),
)
def test_a_job_that_reports_no_steps_is_no_hang_for_that(looks: dict[str, Any]) -> None:
    """Nor for two of three signs."""
    assert not vote(ranks(**looks), HANG).hang


def test_a_plain_job_in_which_nothing_moves_at_all_hangs() -> None:
    """No log, no work, and the same stacks: no machine is named for that."""
    found = vote(ranks(log_silent_s=HANG.plain_silent_s + 1, stacks_unchanged=True), HANG)
    assert (found.hang, found.suspects, found.plain) == (True, (), True)
    assert {"silent", "stuck", "idle"} <= set(found.signals)
    one_moves = [*ranks(7, log_silent_s=DAY, stacks_unchanged=True), rank(7, log_silent_s=DAY)]
    assert not vote(one_moves, HANG).hang


def test_a_process_of_a_plain_job_that_stays_stopped_is_named() -> None:
    """Not one that was stopped a moment ago."""
    others = ranks(7, log_silent_s=301.0, cpu_cores=1.0)
    found = vote([*others, rank(7, log_silent_s=301.0, process_state="T", stopped_s=301.0)], HANG)
    assert (found.hang, found.stopped, found.suspects) == (True, (7,), (7,))
    assert not vote([*others, rank(7, log_silent_s=301.0, process_state="T", stopped_s=1.0)], HANG).hang
    assert not vote(
        [*ranks(7), rank(7, process_state="T", stopped_s=60.0)], HANG
    ).hang  # the others still log


def test_a_job_whose_session_spoke_is_judged_by_its_steps() -> None:
    """In this epoch, or at an earlier start."""
    still = {"silent_s": HANG.first_step_s + 1}
    assert vote([*ranks(7, **still), rank(7, reports=True, **still)], HANG).hang
    assert vote(ranks(**still), HANG, learned=Learned(start_s=10.0)).hang
    assert vote(ranks(**still), HANG, learned=Learned(reports=True)).hang
    assert not vote(ranks(**still), HANG).hang


def test_facts_have_the_silence_of_the_log() -> None:
    """An agent of an older version does not: its ranks count as ones that report."""
    state = RankState(rank=0, pid=1, phase=RankPhase.STARTING, step_at=10.0, reports=False, log_at=70.0)
    found = facts("m0", state, 100.0)
    assert (found.reports, found.log_silent_s) == (False, 30.0)
    old = facts("m0", RankState(rank=0, pid=1, phase=RankPhase.STARTING), 100.0)
    assert (old.reports, old.log_silent_s) == (True, None)


@given(
    st.lists(
        st.builds(
            rank,
            st.integers(0, 7),
            silent_s=st.floats(0, 1e6),
            cpu_cores=st.floats(0, 4),
            log_silent_s=st.floats(0, 1700) | st.none(),
            stacks_unchanged=st.booleans(),
            process_state=st.sampled_from(["S", "R", "D"]),
            blocked_s=st.floats(0, 1e6),
            gpu_busy=st.floats(0, 1) | st.none(),
        ),
        min_size=1,
    )
)
def test_a_plain_job_that_logs_is_never_a_hang(listed: list[HangFacts]) -> None:
    """Whatever its other readings, as long as no process is stopped."""
    assert not vote(listed, HANG).hang


def hanging(number: int, **changes: Any) -> HangFacts:
    """Of a job that reports steps, and stands still with all stacks unchanged."""
    base = {"reports": True, "steps_done": 9, "step_s": 0.2, "silent_s": 90.0, "stacks_unchanged": True}
    return rank(
        number, **{**base, "cpu_cores": 1.0, "log_silent_s": 90.0, "phase": RankPhase.RUNNING, **changes}
    )


def test_the_machine_with_idle_gpus_among_spinning_ones_is_named() -> None:
    """Baige's third: its GPU came to no kernel of the collective."""
    listed = [hanging(n, gpu_busy=0.0 if n in (4, 5) else 1.0) for n in range(8)]
    assert vote(listed, HANG).suspects == (4, 5)
    for other in (None, 0.5):
        mixed = [*listed[:7], hanging(7, gpu_busy=other)]
        assert vote(mixed, HANG).suspects == ()


def test_the_rank_whose_log_ended_first_is_named() -> None:
    """Baige's fourth; not where one rank alone writes, or where ranks write at different times anyway."""
    listed = [hanging(n, log_silent_s=200.0 if n == 3 else 90.0 + n) for n in range(8)]
    assert vote(listed, HANG).suspects == (3,)
    alone = [hanging(n, log_silent_s=90.0 if n == 0 else 5000.0) for n in range(8)]
    assert vote(alone, HANG).suspects == ()
    scattered = [hanging(n, log_silent_s=90.0 + 40 * n) for n in range(8)]
    assert vote(scattered, HANG).suspects == ()
