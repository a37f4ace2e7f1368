"""A start from zero needs a decision of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.checkpoint import RemoteCheckpoint, RestorePlan, SkippedStep, Tier
from holdfast.models.job import FromScratch
from holdfast.policies.config.policy import Policy
from holdfast.policies.restore.from_zero import Consequence, PlanFacts, decide, pause_s

LIMITS = Policy.load().restore
NONE = RestorePlan(
    step=0,
    tier=None,
    skipped=(SkippedStep(step=1200, epoch=1, reason="lacks rank 3; not in S3"),),
    reasons=("step 1200 of epoch 1 skipped: lacks rank 3; not in S3",),
)
KEPT = RestorePlan(step=1200, tier=Tier.MEMORY)
IN_S3 = RestorePlan(
    step=1200,
    tier=Tier.S3,
    remote=RemoteCheckpoint(job="gpt", step=1200, epoch=1, world_size=4, key="gpt/checkpoints/1/"),
)


def facts(**more: Any) -> PlanFacts:
    known: dict[str, Any] = {"job": "gpt", "reached": 1200, "saved": True, "plan": NONE}
    return PlanFacts(**known | more)


@pytest.mark.parametrize(
    ("known", "act"),
    [
        ({"plan": KEPT}, Consequence.GO_ON),
        ({"plan": KEPT, "store_error": "refused"}, Consequence.GO_ON),
        ({"plan": IN_S3}, Consequence.GO_ON),
        ({"plan": IN_S3, "store_error": "refused"}, Consequence.WAIT),
        ({"plan": IN_S3, "store_error": "refused", "waited_s": LIMITS.wait_s}, Consequence.ASK),
        ({}, Consequence.ASK),
        ({"store_error": "refused"}, Consequence.WAIT),
        ({"store_error": "refused", "waited_s": LIMITS.wait_s}, Consequence.ASK),
        ({"silent": ("m1",)}, Consequence.WAIT),
        ({"silent": ("m1",), "waited_s": LIMITS.wait_s}, Consequence.ASK),
        ({"saved": False}, Consequence.GO_ON),
        ({"saved": False, "reached": 0}, Consequence.GO_ON),
        ({"saved": False, "reached": 0, "store_error": "refused"}, Consequence.GO_ON),
        ({"saved": False, "store_error": "refused"}, Consequence.WAIT),
        ({"from_scratch": FromScratch.ALLOW}, Consequence.GO_ON),
        ({"from_scratch": FromScratch.ALLOW, "store_error": "refused"}, Consequence.WAIT),
        ({"from_scratch": FromScratch.NEVER}, Consequence.ASK),
        ({"from_scratch": FromScratch.NEVER, "saved": False}, Consequence.GO_ON),
    ],
)
def test_what_follows(known: dict[str, Any], act: Consequence) -> None:
    """Every combination that is a decision of its own."""
    assert decide(facts(**known), LIMITS).act is act


def test_a_person_reads_what_was_lost_and_what_to_do() -> None:
    """The states that the job had, why none is usable, and each way on as a command."""
    decision = decide(facts(gone=("m7",)), LIMITS)
    assert (
        "gpt had reached step 1200; no saved step is usable: step 1200 of epoch 1 skipped" in decision.summary
    )
    assert "once machine m7 is back" in decision.summary
    assert "once machines m7, m8 are back" in decide(facts(gone=("m7", "m8")), LIMITS).summary
    assert "--step N" in decision.summary
    assert "--from-scratch" in decision.summary


def test_a_script_that_reported_no_step_may_go_on_from_a_file_of_its_own() -> None:
    """One without a Session does: it does not begin from scratch."""
    decision = decide(facts(saved=False, reached=0), LIMITS)
    assert decision.why == "it has reported no step: where it begins is up to its script"


def test_no_step_is_offered_where_none_is_left() -> None:
    """Neither memory nor S3 holds any."""
    nothing = RestorePlan(step=0, tier=None)
    assert "--step N" not in decide(facts(plan=nothing), LIMITS).summary
    assert (
        "--step N"
        in decide(facts(plan=nothing, store_error="refused", waited_s=LIMITS.wait_s), LIMITS).summary
    )


def test_never_offers_no_start_from_zero() -> None:
    """The setting that forbids it is not undone by a hint."""
    assert "--from-scratch" not in decide(facts(from_scratch=FromScratch.NEVER), LIMITS).summary


def test_the_jobs_own_setting_comes_first() -> None:
    """A policy that allows it, a job that does not."""
    allowing = LIMITS.model_copy(update={"from_scratch": FromScratch.ALLOW})
    assert decide(facts(), allowing).act is Consequence.GO_ON
    assert decide(facts(from_scratch=FromScratch.ASK), allowing).act is Consequence.ASK


@given(
    reached=st.integers(0, 10**6),
    error=st.sampled_from(["", "refused"]),
    silent=st.sampled_from([(), ("m1",)]),
    waited_s=st.floats(0, 10**6),
    setting=st.sampled_from([None, *FromScratch]),
)
def test_what_was_saved_is_never_thrown_away_unasked(
    reached: int, error: str, silent: tuple[str, ...], waited_s: float, setting: FromScratch | None
) -> None:
    """With saves and no plan it goes on only where that was allowed, and all that may hold a state has answered."""
    decision = decide(
        facts(reached=reached, store_error=error, silent=silent, waited_s=waited_s, from_scratch=setting),
        LIMITS,
    )
    if decision.act is Consequence.GO_ON:
        assert setting is FromScratch.ALLOW
        assert not error
        assert not silent
    if decision.act is Consequence.WAIT:
        assert waited_s < LIMITS.wait_s


@given(st.integers(0, 10**9))
def test_pauses_grow_to_a_limit(tries: int) -> None:
    """Never shorter than the one before, never longer than the policy allows."""
    assert LIMITS.pause_s <= pause_s(tries, LIMITS) <= pause_s(tries + 1, LIMITS) <= LIMITS.longest_pause_s
