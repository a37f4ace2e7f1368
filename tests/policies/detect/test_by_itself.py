"""Readings of GPUs and ports that are a hang by themselves, where nothing else explains them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.agent import RankState, Vitals
from holdfast.policies.config.policy import Policy
from holdfast.policies.detect.hang import HangVote, vote
from holdfast.policies.detect.hang_facts import HangFacts, Stillness, facts

HANG = Policy.load().hang
SPINS = {"gpu_busy": 1.0, "sm_active": 0.1, "traffic_bytes_s": 0.0, "spins_s": 6.0, "silent_s": 6.0}
QUIET = {"quiet_s": 601.0, "silent_s": 601.0, "traffic_bytes_s": 0.0}
COLD = {"cold_s": 601.0, "silent_s": 601.0}
OTHERWISE = {"idle_cores": 1.5, "votes": 4}
"""The vote finds nothing, so that what is found stands by itself."""


def rank(number: int = 0, **changes: Any) -> HangFacts:
    base = {
        "rank": number,
        "machine": f"m{number // 2}",
        "silent_s": 6.0,
        "cpu_cores": 1.0,
        "process_state": "R",
    }
    return HangFacts.model_validate({**base, "steps_done": 40, "step_s": 2.0, **changes})


def judged(*odd: dict[str, Any], **all_of_them: Any) -> HangVote:
    """Eight ranks alike, the first ones with something else."""
    more = [*odd, *[{}] * (8 - len(odd))]
    policy = HANG.model_copy(update=OTHERWISE)
    return vote([rank(n, **{**all_of_them, **own}) for n, own in enumerate(more)], policy)


@pytest.mark.parametrize(("seen", "signal"), [(SPINS, "spin"), (QUIET, "quiet"), (COLD, "cold")])
def test_each_is_a_hang_by_itself(seen: dict[str, Any], signal: str) -> None:
    """Long before the window, or with no second signal beside it; the reason names the limit."""
    found = judged(**seen, **({} if signal == "spin" else {"cpu_cores": 0.01}))
    assert found.hang
    assert signal in found.signals
    assert any("limit" in reason for reason in found.reasons)


@pytest.mark.parametrize("seen", [SPINS, QUIET, COLD])
@pytest.mark.parametrize(
    "excused",
    [
        pytest.param({"activity": "eval"}, id="evaluation"),
        pytest.param({"activity": "checkpoint"}, id="checkpoint"),
        pytest.param({"activity": "compile"}, id="compilation"),
        pytest.param({"steps_done": 0, "step_s": 0.0, "children_cores": 2.0}, id="first step"),
        pytest.param({"step_s": 400.0}, id="slow steps"),
        pytest.param({"longest_gap_s": 400.0}, id="as long as before"),
        pytest.param({"paused": True}, id="held"),
    ],
)
def test_what_else_explains_it(seen: dict[str, Any], excused: dict[str, Any]) -> None:
    """Each for all ranks: nothing is reported."""
    assert not judged(**{**seen, "cpu_cores": 0.01, **excused}).hang


@pytest.mark.parametrize("seen", [SPINS, QUIET, COLD])
def test_one_machine_that_is_otherwise_is_enough(seen: dict[str, Any]) -> None:
    """The job goes on there."""
    assert not judged({"spins_s": 0.0, "quiet_s": 0.0, "cold_s": 0.0}, **{**seen, "cpu_cores": 0.01}).hang


@pytest.mark.parametrize("seen", [QUIET, COLD])
@pytest.mark.parametrize(
    "works",
    [
        pytest.param({"cpu_cores": 2.0, "stacks_change": True}, id="reads data"),
        pytest.param({"gpu_busy": 0.9}, id="GPUs compute, for all that is known"),
        pytest.param({"gpu_busy": 0.9, "sm_active": 0.6}, id="SMs work"),
    ],
)
def test_who_works_is_no_hang(seen: dict[str, Any], works: dict[str, Any]) -> None:
    """An undeclared evaluation, or data that is prepared, by a single rank."""
    assert not judged(works, **{**seen, "cpu_cores": 0.01}).hang


def test_a_busy_gpu_whose_sms_rest_does_not_work() -> None:
    """It waits for a peer."""
    assert judged({"gpu_busy": 1.0, "sm_active": 0.1}, **{**QUIET, "cpu_cores": 0.01}).hang


@given(
    spins_s=st.floats(0, 1e4),
    quiet_s=st.floats(0, 1e4),
    cold_s=st.floats(0, 1e4),
    silent_s=st.floats(0, 4.0),
)
def test_a_job_that_makes_its_steps_never_hangs(
    spins_s: float, quiet_s: float, cold_s: float, silent_s: float
) -> None:
    """Whatever GPUs and ports say: steps of 2 s, and none is overdue."""
    assert not judged(spins_s=spins_s, quiet_s=quiet_s, cold_s=cold_s, silent_s=silent_s).hang


def test_facts_have_what_heartbeats_reported() -> None:
    """Vitals, and for how long they showed nothing."""
    state = RankState(rank=0, pid=1, phase="running", step_at=1.0)  # type: ignore[arg-type]
    still = Stillness(spins_s=1.0, quiet_s=2.0, cold_s=3.0)
    found = facts("m0", state, 9.0, vitals=Vitals(sm_active=0.3), still=still)
    assert (found.sm_active, found.spins_s, found.quiet_s, found.cold_s) == (0.3, 1.0, 2.0, 3.0)
