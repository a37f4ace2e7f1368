"""Verdicts from findings: the machines that the checks accuse, and how surely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from holdfast.models.alert import Finding, Verdict
from holdfast.policies.diagnose import compare, domains, pace
from holdfast.policies.join_names import join_names

PACE = pace.PaceLimits()

INSIDE = frozenset({"all_to_all", "nic", "matmul", "pcie", "disk", "bitwise", "flight_recorder"})
"""Checks of one machine alone: failing them accuses it."""


NO_DOMAINS: domains.Domains = MappingProxyType({})
DOMAIN_SHARE = 0.5


def measured(checks: Verdict, voted: Verdict) -> Verdict:
    """Return the verdict of checks and of a vote on stacks together: the vote's, where the checks find nothing.

    Args:
        checks: of a diagnosis with the job stopped.
        voted: from looks at stacks while it trained.
    """
    if checks.suspects or checks.shared or not voted.suspects:
        return checks
    evidence = ("no check finds a slow machine", *checks.evidence)
    return voted.model_copy(update={"findings": checks.findings, "evidence": (*voted.evidence, *evidence)})


def judge(
    findings: Iterable[Finding],
    slow_factor: float | None = None,
    limits: pace.PaceLimits = PACE,
    shared: domains.Domains = NO_DOMAINS,
    share: float = DOMAIN_SHARE,
    *,
    most: int | None = None,
) -> Verdict:
    """Weigh all findings of a diagnosis.

    A sure failure, or a failed check inside one machine, accuses that machine. An odd finding of an inspection that is
    not sure (little memory, an application's Xid) is evidence only; so is a check that fails on more machines than may
    be evicted at once (``most``), as on a host that stood still or in a job's broken environment. A failed test between
    two machines accuses neither by itself: a machine is accused when it fails with every machine that it was
    tested with, these are at least two, and they pass with another one. Digests of the same computation are
    compared among equals: the minority is accused, a tie is reported and accuses no machine. The rest is
    evidence, not a suspect: a wrong eviction costs more than a late one.

    Args:
        findings: of all tiers so far.
        slow_factor: a machine that is slower than its equals (by more than this times their median, or by ``limits``),
            or than it was, is accused too; None: it is only reported.
        limits: of pace.
        shared: failure domains of the machines: where most of one have bad transfers, it is suspected, not they; unless
            as many of its machines transfer well.
        share: so large a part of a domain's machines is most.
        most: a check that fails on more machines than this, surely on none, accuses none; None: it does.
    """
    listed = tuple(findings)
    failed = [finding for finding in listed if not finding.ok]
    sure = {finding.machine for finding in failed if finding.sure}
    alone, alike = _alone(failed, most)
    paired = _accused_by_pairs(listed) - sure - alone
    odd, odd_lines = compare.odd_digests(listed)
    slow, slowness = pace.slow(listed, slow_factor or 1.5, limits)
    links = paired | (pace.slow_links(listed, slow_factor, limits) if slow_factor else set())
    common = domains.shared(links - sure - alone - odd, shared, share, _well_connected(listed) - links)
    victims = frozenset(name for hit in common.values() for name in hit)
    own, _ = pace.slow((each for each in listed if each.peer is None), slow_factor or 1.5, limits)
    by_value = odd | ((slow - victims) | own if slow_factor else set())
    suspects = tuple(sorted(sure | alone | (paired - victims) | by_value))
    weights = ((sure, 1.0), (odd, 0.95), (alone, 0.8), (paired, 0.7), (slow, 0.7))
    evidence = (
        *alike,
        *domains.describe(common),
        *(_described(finding) for finding in failed),
        *odd_lines,
        *slowness,
    )
    return Verdict(
        suspects=suspects,
        confidence=next((weight for named, weight in weights if named.intersection(suspects)), 0.0),
        evidence=evidence,
        findings=listed,
        shared=tuple(common),
    )


def in_words(verdict: Verdict, failed: str) -> str:
    """Return what the suspects did: ``failed``, but those whose agents went away while they were tested failed no test.

    Args:
        verdict: the verdict, which has suspects.
        failed: what the others did.
    """
    silent = {each.machine: each.detail for each in verdict.findings if each.silent}
    gone = [name for name in verdict.suspects if name in silent]
    if not gone:
        return failed
    unanswered = f"did not answer in the diagnosis ({silent[gone[0]]})"
    return unanswered if len(gone) == len(verdict.suspects) else f"{failed}; {join_names(gone)} {unanswered}"


def _alone(failed: Iterable[Finding], most: int | None) -> tuple[set[str], list[str]]:
    """Return the machines that fail a check by themselves, and in words the checks that too many fail for that."""
    by_check: dict[str, set[str]] = defaultdict(set)
    for finding in failed:
        if finding.check in INSIDE and finding.peer is None and not finding.sure:
            by_check[finding.check].add(finding.machine)
    shared = {} if most is None else {check: names for check, names in by_check.items() if len(names) > most}
    return (
        set().union(*(names for check, names in by_check.items() if check not in shared)),
        [
            f"{check} fails on {len(names)} machines, more than the over-eviction limit of {most}: a cause that they "
            "share is likely, none is accused of it"
            for check, names in sorted(shared.items())
        ],
    )


def _described(finding: Finding) -> str:
    peer = f" with {finding.peer}" if finding.peer else ""
    return f"{finding.check} on {finding.machine}{peer}: {finding.detail or 'failed'}"


def pair_results(findings: Iterable[Finding]) -> dict[str, dict[str, bool]]:
    """Return for each machine whether each pair test with another machine passed; both sides must report success."""
    results: dict[str, dict[str, bool]] = defaultdict(dict)
    for finding in findings:
        if finding.peer is not None:
            one, other = results[finding.machine], results[finding.peer]
            ok = finding.ok and one.get(finding.peer, True)
            one[finding.peer] = other[finding.machine] = ok
    return results


def _well_connected(findings: Iterable[Finding]) -> set[str]:
    return {machine for machine, tested in pair_results(findings).items() if any(tested.values())}


def _accused_by_pairs(findings: Sequence[Finding]) -> set[str]:
    """Return machines that fail with at least two others, and only with machines that pass with another one.

    When suspects failed with each other as well, their tests with machines proved good decide.
    """
    results = pair_results(findings)
    good = _well_connected(findings)
    return {
        machine
        for machine, tested in results.items()
        if machine not in good
        and len(tested) >= 2
        and (tested.keys() <= good or len(tested.keys() & good) >= 2)
    }
