"""Answers of agents to checks: what accuses a machine, and what does not."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError, RefusedError, SettingsError, SilentError, UnavailableError
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


def test_of_many_that_send_no_answer_none_is_accused() -> None:
    """The network of the one who asks may be cut; it must not empty a small job's machines."""
    subject = checks.Subject(None, "gpt", most_silent=1)  # type: ignore[arg-type]
    quiet = SilentError("no answer")
    answers: list[tuple[str, checks.Answer]] = [("m1", quiet), ("m2", quiet), ("m3", RefusedError("busy"))]
    found = checks._found(subject, Check.MATMUL, answers)
    assert [finding.ok for finding in found] == [True, True, False]
    assert found[0].detail.startswith("not tested: 2 machines send no answer")
    assert judge(found).suspects == ("m3",)
    assert judge(checks._found(subject, Check.MATMUL, answers[1:2])).suspects == ("m2",)
