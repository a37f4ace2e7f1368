"""Ranks that die again and again on one machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Alert, AlertKind
from holdfast.policies.config.policy import Policy
from holdfast.policies.pool import rank_deaths
from holdfast.policies.pool.rank_deaths import Death

POLICY = Policy.load()
FLAPS = POLICY.ladder.flaps
GPU_ERRORS = POLICY.ladder.gpu_errors
NOW = 1e6
MACHINES = ("m0", "m1", "m2")


def deaths(*of: tuple[str, int], what: str = "SIGSEGV", steps: tuple[int | None, ...] = ()) -> list[Death]:
    """Two minutes and ten steps apart, the last one now."""
    return [
        Death(
            at=NOW - 120 * (len(of) - 1 - number),
            job="gpt",
            machine=machine,
            rank=rank,
            what=what,
            step=steps[number] if steps else 10 * number,
        )
        for number, (machine, rank) in enumerate(of)
    ]


def test_the_third_death_on_one_machine_is_its_fault() -> None:
    """Of the same rank or of others of it."""
    assert rank_deaths.why("m1", deaths(("m1", 3), ("m1", 3)), NOW, FLAPS) == ""
    assert "3 times within 30 min" in rank_deaths.why("m1", deaths(*[("m1", 3)] * 3), NOW, FLAPS)
    assert rank_deaths.why("m1", deaths(("m1", 2), ("m1", 3), ("m1", 2)), NOW, FLAPS)
    assert not rank_deaths.why("m2", deaths(*[("m1", 3)] * 3), NOW, FLAPS)


def test_a_rank_that_dies_all_the_time_counts_as_one_that_dies_now_and_then() -> None:
    """Each death followed the one before within `apart_s`, so they were one for ever, and the machine stayed."""
    often = [
        each.model_copy(update={"at": NOW - 45.0 * (4 - number)})
        for number, each in enumerate(deaths(*[("m1", 3)] * 5))
    ]
    assert "3 times within 30 min" in rank_deaths.why("m1", often, NOW, FLAPS)
    assert rank_deaths.why("m1", often[1:], NOW, FLAPS) == ""


def test_the_same_failure_elsewhere_clears_it() -> None:
    """A failure on two machines is due to the code, the data or a bad hour."""
    both = [*deaths(*[("m1", 3)] * 3), *deaths(("m0", 0))]
    assert not rank_deaths.why("m1", both, NOW, FLAPS)
    other = [*deaths(*[("m1", 3)] * 3), *deaths(("m0", 1), what="SIGBUS")]
    assert rank_deaths.why("m1", other, NOW, FLAPS)


def test_what_ranks_of_another_job_die_of_as_well_is_no_machines() -> None:
    """A killer of processes on every host, a driver, an image; one death of the kind may be chance."""
    mine = deaths(*[("m1", 3)] * 3, what="SIGKILL")

    def elsewhere(*of: tuple[str, int], what: str = "SIGKILL") -> list[Death]:
        return [each.model_copy(update={"job": "bert"}) for each in deaths(*of, what=what)]

    for others, accused in (
        (elsewhere(("m7", 0), ("m7", 1)), False),
        (
            [*elsewhere(("m7", 0)), *deaths(("m7", 0), ("m9", 0), what="SIGKILL")],
            False,
        ),  # of two jobs, one after the other
        (elsewhere(("m7", 0)), True),
        (elsewhere(("m7", 0), ("m8", 1)), True),
        (elsewhere(("m7", 0), ("m7", 1), what="SIGBUS"), True),
        (elsewhere(("m1", 0), ("m1", 1)), True),  # on the machine itself: no way out
        ([each.model_copy(update={"raised": True}) for each in elsewhere(("m7", 0), ("m7", 1))], True),
        ([each.model_copy(update={"at": each.at - 7200}) for each in elsewhere(("m7", 0), ("m7", 1))], True),
    ):
        assert bool(rank_deaths.why("m1", mine, NOW, FLAPS, others)) == accused, others


def test_a_rank_that_died_on_another_machine_takes_its_habit_along() -> None:
    """It was moved, and died there too."""
    moved = [*deaths(*[("m1", 3)] * 3), *deaths(("m2", 3), what="SIGABRT")]
    assert not rank_deaths.why("m1", moved, NOW, FLAPS)


def test_rank_0_alone_is_never_the_machine() -> None:
    """It saves, logs and downloads for all; only together with another rank does it count."""
    assert not rank_deaths.why("m0", deaths(*[("m0", 0)] * 9), NOW, FLAPS)
    assert rank_deaths.why("m0", deaths(("m0", 0), ("m0", 1), ("m0", 0)), NOW, FLAPS)


def test_deaths_at_one_step_are_one() -> None:
    """The same data is read each time."""
    assert not rank_deaths.why("m1", deaths(*[("m1", 3)] * 5, steps=(20, 20, 21, 20, 20)), NOW, FLAPS)
    assert rank_deaths.why("m1", deaths(*[("m1", 3)] * 3, steps=(None, None, None)), NOW, FLAPS)


@pytest.mark.parametrize(
    ("evidence", "raised"),
    [
        ({"signal": "SIGSEGV"}, False),
        ({"error_type": "ValueError", "user_frame": "data.py:33 in read"}, True),
        ({"error_type": "RuntimeError", "user_frame": "train.py:9 in step"}, True),
        ({"error_type": "RuntimeError", "user_frame": "train.py:9 in step", "cause": "gpu"}, False),
        ({"error_type": "RuntimeError", "cause": "setup"}, True),
        ({"error_type": "RuntimeError", "cause": "code"}, True),
        ({"exit_code": 1}, False),
        ({"exit_code": 2}, False),
        (
            {
                "exit_code": 2,
                "log_tail": "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lr=1\n",
            },
            True,
        ),
    ],
)
def test_what_its_own_code_raised_is_no_machines(evidence: dict[str, object], raised: bool) -> None:
    """Unless the traceback ends in an error of the GPU."""
    found = died(evidence)
    assert found is not None
    assert found.raised is raised
    again = [found.model_copy(update={"at": NOW - 120 * n, "step": 10 * n}) for n in range(3)]
    assert bool(rank_deaths.why("m1", again, NOW, FLAPS)) is not raised


def test_what_an_agent_took_along_is_the_agents() -> None:
    """It is counted as an agent that restarted."""
    assert died({"error_type": "AgentRestarted"}) is None


def died(evidence: dict[str, object]) -> Death | None:
    alert = Alert(kind=AlertKind.RANK_EXIT, job="gpt", machine="m1", rank=3, at=1.0, evidence=evidence)
    return rank_deaths.death(alert, NOW, 20, POLICY.classify)


_DEATHS = st.builds(
    Death,
    at=st.floats(NOW - 4000, NOW),
    job=st.just("gpt"),
    machine=st.sampled_from(MACHINES),
    rank=st.integers(0, 5),
    what=st.sampled_from(["SIGSEGV", "SIGKILL", "exit status 1"]),
    raised=st.booleans(),
    step=st.none() | st.integers(0, 40),
)


@given(st.lists(_DEATHS, max_size=30))
def test_it_accuses_one_machine_per_failure_and_none_for_fewer_than_the_count(found: list[Death]) -> None:
    """Each accusation rests on enough deaths of failures that no other machine had."""
    for machine in MACHINES:
        if rank_deaths.why(machine, found, NOW, FLAPS):
            recent = [each for each in found if NOW - FLAPS.window_s < each.at and not each.raised]
            mine = {each.what for each in recent if each.machine == machine}
            assert mine - {each.what for each in recent if each.machine != machine}
            assert sum(each.machine == machine for each in recent) >= FLAPS.count


def by_gpu(*of: tuple[str, int], apart_s: float = 3600.0, **changes: object) -> list[Death]:
    """Errors of the GPU, an hour and ten steps apart."""
    return [
        each.model_copy(update={"at": NOW - apart_s * number, "of_gpu": True} | changes)
        for number, each in enumerate(deaths(*of, what="RuntimeError"))
    ]


def test_the_third_error_of_the_gpu_within_a_day_is_its_machines_fault() -> None:
    """However much the job did between them; other deaths are counted for half an hour alone."""
    hourly = by_gpu(("m1", 3), ("m1", 2), ("m1", 3))
    assert not rank_deaths.why("m1", hourly, NOW, FLAPS)
    assert "3 times within 24 h" in rank_deaths.why_of_gpu("m1", hourly, NOW, GPU_ERRORS)
    assert not rank_deaths.why_of_gpu("m1", hourly[1:], NOW, GPU_ERRORS)
    assert not rank_deaths.why_of_gpu("m2", hourly, NOW, GPU_ERRORS)
    killed = by_gpu(("m1", 3), ("m1", 2), ("m1", 3), of_gpu=False)
    assert not rank_deaths.why_of_gpu("m1", killed, NOW, GPU_ERRORS)
    weekly = by_gpu(*[("m1", 3)] * 5, apart_s=604_800.0)
    assert not rank_deaths.why_of_gpu("m1", weekly, NOW, GPU_ERRORS)


def test_errors_of_the_gpu_that_the_job_explains_accuse_no_machine() -> None:
    """Elsewhere too; at one step; of rank 0 alone. Another failure elsewhere explains nothing."""
    hourly = by_gpu(("m1", 3), ("m1", 2), ("m1", 3))
    assert not rank_deaths.why_of_gpu("m1", [*hourly, *by_gpu(("m2", 5))], NOW, GPU_ERRORS)
    assert not rank_deaths.why_of_gpu("m1", by_gpu(*[("m1", 3)] * 4, step=20), NOW, GPU_ERRORS)
    assert not rank_deaths.why_of_gpu("m0", by_gpu(*[("m0", 0)] * 4), NOW, GPU_ERRORS)
    other = by_gpu(("m2", 5), of_gpu=False)
    assert rank_deaths.why_of_gpu("m1", [*hourly, *other], NOW, GPU_ERRORS)


def test_what_one_job_does_to_its_rank_0_accuses_no_machine_to_the_next_job() -> None:
    """A job of one rank died three times; the machine went at the first death of another job's rank."""
    alone = [each.model_copy(update={"job": "alone"}) for each in deaths(*[("m1", 0)] * 4)][:3]
    assert not rank_deaths.why("m1", [*alone, *deaths(("m1", 1))], NOW, FLAPS)
    once = [
        each.model_copy(update={"job": f"job {each.step}"})
        for each in deaths(("m1", 0), ("m1", 0), ("m1", 1))
    ]
    assert rank_deaths.why("m1", once, NOW, FLAPS), "rank 0 of several jobs, once each, and another rank"
