"""A rank that cannot make its part of a plan informs the others, which would else wait for it without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.conftest import MakeAgent

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SCRIPT = Path(__file__).parent / "scripts" / "unplanned.py"
STEPS = 14
PLAN = "holdfast.storage.checkpoints.format.plan"
FAULTS = {
    "its description": (1, PLAN, "describe"),
    "the hashes of its buffers": (1, "holdfast.session.shared", "hash_of"),
    "the metadata": (0, PLAN, "write_metadata"),
    "its layout": (1, PLAN, "layout_of"),
    "its buffer": (1, "holdfast.storage.checkpoints.save.slot_files", "create_locked"),
}


def arguments(fault: str, *, plan: int) -> list[str]:
    return [str(each) for each in (STEPS, *FAULTS[fault], plan)]


@pytest.mark.parametrize(
    "fault",
    [
        each
        if each in ("its description", "the metadata")
        else pytest.param(each, marks=pytest.mark.thorough)
        for each in FAULTS
    ],
)
def test_training_goes_on_and_the_next_plan_is_made(make_agent: MakeAgent, fault: str) -> None:
    """A later plan fails on one rank: that save is lost on all, no rank waits, and later ones are common again."""
    agent = make_agent(2)
    agent.start(SCRIPT, arguments(fault, plan=3))
    assert agent.join(60) == [0, 0], agent.output()
    lines = sorted(line for line in agent.output().splitlines() if line.startswith("rank "))
    assert [line.split(", ")[0] for line in lines] == ["rank 0: failed 1", "rank 1: failed 1"], agent.output()
    assert agent.common_step() == STEPS, agent.output()


@pytest.mark.parametrize(
    "fault",
    [
        "its layout",
        *(pytest.param(each, marks=pytest.mark.thorough) for each in FAULTS if each != "its layout"),
    ],
)
def test_the_first_plan_is_refused_on_all_ranks(make_agent: MakeAgent, fault: str) -> None:
    """One rank reports why, and the other that it was another."""
    agent = make_agent(2)
    agent.start(SCRIPT, arguments(fault, plan=1))
    assert agent.join(60) == [3, 3], agent.output()
    assert "cannot be saved on another rank" in agent.output()
    assert "cannot be saved: MemoryError: injected" in agent.output()
