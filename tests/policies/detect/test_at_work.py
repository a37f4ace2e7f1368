"""Ranks that visibly work are no hang, before the first step and in pauses; and there is an end to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import RankPhase, RankState, Vitals
from holdfast.models.history import Epoch
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.hang import HangVote, vote, window_s
from holdfast.policies.detect.hang_facts import HangFacts, Learned, facts
from holdfast.policies.detect.starts import longest_s

HANG = Policy.load().hang
START = HANG.first_step_s


def rank(number: int, **changes: Any) -> HangFacts:
    base = {"rank": number, "machine": f"m{number // 2}", "silent_s": START + 1, "cpu_cores": 0.01}
    return HangFacts.model_validate({**base, **changes})


def starting(silent_s: float = START + 1, **of_rank_0: Any) -> list[HangFacts]:
    """Eight ranks before their first step, seven of which wait."""
    return [rank(0, silent_s=silent_s, **of_rank_0), *(rank(each, silent_s=silent_s) for each in range(1, 8))]


def pausing(silent_s: float = 40.0, **of_rank_0: Any) -> list[HangFacts]:
    """Eight ranks of a job of 0.5 s steps, seven of which wait."""
    usual = {"steps_done": 40, "step_s": 0.5, "silent_s": silent_s}
    return [rank(0, **(usual | of_rank_0)), *(rank(each, **usual) for each in range(1, 8))]


@pytest.mark.parametrize(
    "works",
    [
        pytest.param({"cpu_cores": 0.9}, id="tokenises"),
        pytest.param({"children_cores": 3.0}, id="compiles in other processes"),
        pytest.param({"io_bytes_s": 5e6}, id="downloads"),
        pytest.param({"io_bytes_s": 5e6, "process_state": "D", "blocked_s": 3.0}, id="reads"),
        pytest.param({"children_cores": 3.0, "stacks_unchanged": True}, id="waits for its compiler"),
    ],
)
def test_a_rank_that_prepares_is_no_hang_for_hours(works: dict[str, Any]) -> None:
    """While the others wait for it; but not for ever."""
    found = vote(starting(**works), HANG)
    assert not found.hang
    assert found.working == (0,)
    assert "ranks 0 work" in found.exempt
    assert not vote(starting(HANG.start_working_s, **works), HANG).hang
    ended = vote(starting(HANG.start_working_s + 1, **works), HANG)
    assert ended.hang
    assert ended.starting
    assert "endless" in ended.signals


def test_a_start_in_which_nothing_moves_is_found() -> None:
    """All are still: no processor, no bytes."""
    assert vote(starting(), HANG).hang
    assert not vote(starting(START - 1), HANG).hang


def test_ranks_that_spin_with_unchanged_stacks_do_not_prepare() -> None:
    """All wait in a collective that keeps their processors busy."""
    spin = [rank(each, cpu_cores=1.0, stacks_unchanged=True) for each in range(8)]
    assert vote(spin, HANG).hang


def test_a_rank_that_a_device_does_not_let_go_is_found_beside_one_that_works() -> None:
    """It was not seen otherwise for the whole limit."""
    listed = [*starting(cpu_cores=1.0)[:7], rank(7, process_state="D", blocked_s=START + 1)]
    found = vote(listed, HANG)
    assert found.hang
    assert found.blocked == (7,)


def test_starts_are_compared_with_earlier_ones() -> None:
    """A job whose starts took forty minutes is patient with the next, still or not."""
    learned = Learned(start_s=2400.0)
    assert not vote(starting(2400 * HANG.start_factor), HANG, learned=learned).hang
    assert vote(starting(2400 * HANG.start_factor + 1), HANG, learned=learned).hang
    long = Learned(start_s=HANG.start_working_s)
    assert not vote(starting(HANG.start_working_s * 2, cpu_cores=1.0), HANG, learned=long).hang


def test_the_longest_start_is_of_this_submission() -> None:
    """Epochs that never came to a step, and those of another submission, say nothing."""

    def epoch(number: int, took_s: float | None) -> Epoch:
        at = 1000.0 * number
        first = None if took_s is None else at + took_s
        return Epoch(
            job="gpt",
            epoch=number,
            start_step=0,
            code_version="v1",
            machines=("m0",),
            reason="",
            opened_at=at,
            first_step_at=first,
        )

    epochs = [epoch(1, 900.0), epoch(2, 30.0), epoch(3, None), epoch(4, 50.0)]
    assert longest_s(epochs, 2000.0) == 50.0
    assert longest_s(epochs, 0.0) == 900.0
    assert longest_s([], 0.0) == 0.0


def test_an_undeclared_evaluation_is_no_hang() -> None:
    """A job of 0.5 s steps pauses: GPUs compute, or the one rank that runs comes to other places."""
    for works in (
        {"gpu_busy": 0.97, "traffic_bytes_s": 0.0},
        {"cpu_cores": 1.0, "stacks_change": True},
    ):
        for silent_s in (6.0, 40.0, HANG.undeclared_s):
            found = vote(pausing(silent_s, **works), HANG)
            assert not found.hang
            assert found.working == (0,)
        assert vote(pausing(HANG.undeclared_s + 1, **works), HANG).hang


def test_a_rank_that_waits_for_its_children_is_no_hang() -> None:
    """A loader's workers load torch (spawn, forkserver), or a program of its own evaluates: its stack is the same."""
    for silent_s in (6.0, HANG.undeclared_s):
        ranks = pausing(silent_s, children_cores=0.9)
        assert not vote(ranks, HANG).hang
        still = [each.model_copy(update={"stacks_unchanged": True}) for each in ranks]
        assert not vote(still, HANG).hang
    assert vote(pausing(HANG.undeclared_s + 1, children_cores=0.9), HANG).hang


def test_unchanged_stacks_end_the_patience_with_a_pause() -> None:
    """GPUs that look busy wait in a collective."""
    same = [each.model_copy(update={"stacks_unchanged": True}) for each in pausing(gpu_busy=1.0)]
    assert vote(same, HANG).hang


def test_a_job_that_spins_is_found_eventually() -> None:
    """Busy processors, no GPU that reports, stacks that differ in a line: only the time shows it."""
    spin = {"cpu_cores": 1.0, "steps_done": 40, "step_s": 0.5}
    busy = [rank(each, silent_s=HANG.endless_s, **spin) for each in range(8)]
    assert not vote(busy, HANG).hang
    late = [each.model_copy(update={"silent_s": HANG.endless_s + 1}) for each in busy]
    assert set(vote(late, HANG).signals) == {"silent", "endless"}
    assert vote(late, HANG).hang


def test_a_read_is_not_a_stuck_process() -> None:
    """State D at one look is a page that comes from the disk; for ten seconds it is a device that does not answer."""
    short = [
        *pausing(6.0)[:7],
        rank(7, silent_s=6.0, steps_done=40, step_s=0.5, process_state="D", blocked_s=1.0),
    ]
    busy = [each.model_copy(update={"cpu_cores": 1.0}) for each in short]
    assert not vote(busy, HANG).hang
    long = [*busy[:7], busy[7].model_copy(update={"blocked_s": HANG.blocked_s})]
    assert vote(long, HANG).blocked == (7,)


def test_pauses_that_the_job_made_before_are_no_hang() -> None:
    """Its own, and those of declared phases."""
    assert window_s(pausing(longest_gap_s=400.0), HANG) == 500.0
    assert window_s(pausing(longest_gap_s=9000.0), HANG) == HANG.endless_s
    evaluates = pausing(5000.0, activity="eval")
    assert vote(evaluates, HANG).hang
    assert not vote(evaluates, HANG, learned=Learned(phase_s={"eval": 2600.0})).hang


def test_a_rank_that_ends_early_is_named() -> None:
    """The others wait in a collective that it never joins: they have two minutes to end as well."""

    def after(silent_s: float) -> HangVote:
        gone = rank(3, silent_s=silent_s, steps_done=40, phase=RankPhase.EXITED, exit_code=0)
        left = [each.model_copy(update={"silent_s": silent_s}) for each in pausing() if each.rank != 3]
        return vote([gone, *left], HANG)

    assert not after(HANG.early_end_s).hang
    found = after(HANG.early_end_s + 1)
    assert found.hang
    assert (found.ended, found.suspects) == ((3,), ())
    assert "ranks 3 ended with status 0, 7 others have not come to their end" in found.reasons


def test_the_last_ranks_may_write_for_longer() -> None:
    """Most have ended: that is the end of the job."""
    gone = [rank(each, silent_s=500.0, phase=RankPhase.EXITED, exit_code=0) for each in range(1, 8)]
    assert not vote([rank(0, silent_s=500.0, steps_done=40), *gone], HANG).hang


def test_work_is_the_growth_between_two_heartbeats() -> None:
    """Of children and bytes as of the process itself."""
    state = RankState(
        rank=0, pid=1, phase=RankPhase.STARTING, cpu_s=1.0, children_cpu_s=30.0, io_bytes=9_000_000
    )
    found = facts(
        "m0", state, 104.0, earlier=(100.0, 1.0), work_before=(100.0, 22.0, 1_000_000.0), blocked_since=103.0
    )
    assert (found.children_cores, found.io_bytes_s, found.blocked_s) == (2.0, 2_000_000.0, 1.0)
    fewer = facts(
        "m0", state, 104.0, earlier=(100.0, 1.0), work_before=(100.0, 90.0, 1e9), vitals=Vitals(gpu_busy=0.4)
    )
    assert (fewer.children_cores, fewer.io_bytes_s) == (0.0, 0.0), "a child that ended takes its share along"


any_rank = st.builds(
    rank,
    st.integers(0, 9),
    silent_s=st.floats(0.0, 20_000.0),
    step_s=st.floats(0.0, 100.0),
    longest_gap_s=st.floats(0.0, 900.0),
    cpu_cores=st.sampled_from((0.0, 1.0)),
    children_cores=st.sampled_from((0.0, 1.0)),
    io_bytes_s=st.sampled_from((0.0, 1e6)),
    gpu_busy=st.sampled_from((None, 0.0, 1.0)),
    traffic_bytes_s=st.sampled_from((None, 0.0, 1e9)),
    process_state=st.sampled_from("RSTD"),
    steps_done=st.integers(0, 2),
    stacks_unchanged=st.booleans(),
    stacks_change=st.booleans(),
    activity=st.sampled_from(("", "eval", "checkpoint")),
)


@given(st.lists(any_rank, min_size=1, max_size=6), st.floats(0.0, 4000.0))
def test_every_silence_has_an_end(listed: list[HangFacts], start_s: float) -> None:
    """Whatever ranks seem to do: beyond all limits it is a hang."""
    silent = min(each.silent_s for each in listed)
    longest = max(HANG.start_working_s, HANG.start_factor * start_s)
    assert vote(listed, HANG, learned=Learned(start_s=start_s)).hang or silent <= longest


@given(st.lists(any_rank, min_size=1, max_size=6))
def test_work_never_makes_a_hang(listed: list[HangFacts]) -> None:
    """A rank that is seen to work gives patience, and takes none."""
    if not vote(listed, HANG).hang:
        busier = [each.model_copy(update={"children_cores": 2.0}) for each in listed]
        assert not vote(busier, HANG).hang
