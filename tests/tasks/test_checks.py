"""Answers of agents to checks: what accuses a machine, and what does not."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError, RefusedError, SettingsError, UnavailableError
from holdfast.models.agent import Check
from holdfast.policies.diagnose.verdicts import INSIDE, judge
from holdfast.tasks import checks


@pytest.mark.parametrize("tier", sorted(INSIDE))
def test_an_agent_that_does_not_know_a_check_accuses_no_machine(tier: str) -> None:
    """While a fleet is upgraded, agents are one release older than who asks them."""
    refused = SettingsError(f"diagnose: check = {tier!r}: expected one of inspect, matmul.")
    (finding,) = checks.findings(tier, "m1", refused)
    assert finding.ok
    assert finding.value is None
    assert finding.detail.startswith("not tested: ")
    assert judge([finding], 1.5).suspects == ()


@pytest.mark.parametrize(
    ("error", "sure"), [(UnavailableError("no answer"), True), (RefusedError("busy"), False)]
)
def test_one_that_does_not_answer_or_refuses_is_a_finding(error: HoldfastError, sure: bool) -> None:
    """As before."""
    (finding,) = checks.findings(Check.MATMUL, "m1", error)
    assert (finding.ok, finding.sure) == (False, sure)
    assert judge([finding]).suspects == ("m1",)
