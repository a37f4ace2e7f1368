"""Findings become a verdict: sure ones accuse, pairs only together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.alert import Finding, Verdict
from holdfast.policies.diagnose.verdicts import in_words, judge, measured


def ring(machines: int, bad: set[int], ok: bool = False) -> list[Finding]:
    """Pair tests around a ring; pairs that touch a bad machine fail, reported by both sides."""
    found = []
    for left in range(machines):
        right = (left + 1) % machines
        passed = ok or not {left, right} & bad
        found += [
            Finding(check="all_gather", machine=f"m{left}", peer=f"m{right}", ok=passed),
            Finding(check="all_gather", machine=f"m{right}", peer=f"m{left}", ok=passed),
        ]
    return found


def test_nothing_failed_accuses_none() -> None:
    """All checks pass: no suspect, no evidence."""
    verdict = judge(ring(4, set()))
    assert not verdict.suspects
    assert not verdict.evidence
    assert verdict.confidence == 0.0


def test_a_machine_that_went_away_while_it_was_tested_failed_no_test() -> None:
    """The check that was under way reports a failure, and a bad link or pace."""
    gone = Finding(
        check="bitwise", machine="m3", ok=False, sure=True, silent=True, detail="connection refused"
    )
    lost = Finding(check="gpu", machine="m1", ok=False, sure=True, detail="lost")
    assert (
        in_words(judge([gone]), "has a broken link") == "did not answer in the diagnosis (connection refused)"
    )
    assert in_words(judge([lost]), "failed") == "failed"
    both = in_words(judge([gone, lost]), "failed")
    assert both == "failed; m3 did not answer in the diagnosis (connection refused)"


def test_a_sure_finding_accuses_its_machine() -> None:
    """A lost GPU needs no second opinion."""
    verdict = judge([Finding(check="gpu", machine="m1", ok=False, sure=True, detail="lost")])
    assert verdict.suspects == ("m1",)
    assert verdict.confidence == 1.0
    assert verdict.evidence == ("gpu on m1: lost",)


def test_a_failed_check_inside_a_machine_accuses_it() -> None:
    """All-to-all inside one machine involves no other."""
    assert judge([Finding(check="all_to_all", machine="m2", ok=False)]).suspects == ("m2",)


def test_a_check_that_more_fail_than_may_be_evicted_accuses_none_of_them() -> None:
    """A host that stood still, or a job's environment that breaks the check: no machine of three is at fault for it."""
    late = [Finding(check="all_to_all", machine=f"m{at}", ok=False, detail="not finished") for at in range(3)]
    verdict = judge(late, most=1)
    assert not verdict.suspects
    assert verdict.evidence[0].startswith(
        "all_to_all fails on 3 machines, more than the over-eviction limit of 1"
    )
    assert judge(late[:1], most=1).suspects == ("m0",)
    sure = Finding(check="all_to_all", machine="m1", ok=False, sure=True, detail="8 bytes arrived damaged")
    assert judge([*late, sure], most=1).suspects == ("m1",)
    other = Finding(check="matmul", machine="m2", ok=False, detail="an error")
    assert judge([*late, other], most=1).suspects == ("m2",)


def test_two_machines_that_fail_together_accuse_none() -> None:
    """With one pair it cannot be known which side is bad."""
    verdict = judge(ring(2, {0}))
    assert not verdict.suspects
    assert verdict.evidence


def test_three_in_a_ring_name_none_when_all_pairs_fail() -> None:
    """When every pair fails, the network is as likely as any machine."""
    assert not judge(ring(4, {0, 1, 2, 3})).suspects


@given(st.integers(5, 40), st.data())
def test_one_bad_machine_in_a_ring_is_named(machines: int, data: st.DataObject) -> None:
    """It fails with both neighbours, and they pass with their others."""
    bad = data.draw(st.integers(0, machines - 1))
    assert judge(ring(machines, {bad})).suspects == (f"m{bad}",)


@given(st.permutations(ring(6, {2})))
def test_the_order_of_findings_does_not_matter(findings: list[Finding]) -> None:
    """Whichever machine answers first."""
    assert judge(findings).suspects == ("m2",)


def test_what_checks_measure_goes_before_what_stacks_show() -> None:
    """A rank that left a collective before the others did stands out as well."""
    voted = Verdict(suspects=("m2",), confidence=0.8, evidence=("stood out in 5 looks: machine m2 4x",))
    slow = Verdict(suspects=("m1",), confidence=0.9, evidence=("m1 is slow",))
    shared = Verdict(shared=("switch leaf-1",), evidence=("switch leaf-1 suspected",))
    quiet = Verdict(evidence=("all machines agree",))
    assert measured(slow, voted) == slow
    assert measured(shared, voted) == shared
    assert measured(quiet, Verdict()) == quiet
    kept = measured(quiet, voted)
    assert (kept.suspects, kept.confidence) == (("m2",), 0.8)
    assert kept.evidence == (*voted.evidence, "no check finds a slow machine", "all machines agree")
