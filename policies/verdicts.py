"""From findings to a verdict: which machines do the checks accuse, and how surely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.models.alert import Finding, Verdict


def judge(findings: Iterable[Finding]) -> Verdict:
    """Weigh all findings of a diagnosis.

    A sure failure, or a failed collective inside one machine, accuses that machine. What inspection found odd
    without being sure (little memory, an application's Xid) is evidence only. A failed test between two
    machines accuses neither by itself: a machine is accused when it fails with every neighbour that it was
    tested with, and it has at least two, and those neighbours pass with somebody else. What is left over is
    evidence, not a suspect: a wrong eviction costs more than a late one.
    """
    listed = tuple(findings)
    failed = [finding for finding in listed if not finding.ok]
    sure = {finding.machine for finding in failed if finding.sure}
    alone = {finding.machine for finding in failed if finding.check == "all_to_all"}
    paired = _accused_by_pairs(listed) - sure - alone
    suspects = tuple(sorted(sure | alone | paired))
    confidence = 0.0 if not suspects else 1.0 if sure else 0.8 if alone else 0.7
    evidence = tuple(
        f"{finding.check} on {finding.machine}"
        + (f" with {finding.peer}" if finding.peer else "")
        + f": {finding.detail or 'failed'}"
        for finding in failed
    )
    return Verdict(suspects=suspects, confidence=confidence, evidence=evidence, findings=listed)


def _accused_by_pairs(findings: Iterable[Finding]) -> set[str]:
    """Machines that fail with all of at least two neighbours, each of which passes with another machine."""
    outcome: dict[frozenset[str], bool] = {}
    for finding in findings:
        if finding.peer is not None:
            pair = frozenset((finding.machine, finding.peer))
            outcome[pair] = outcome.get(pair, True) and finding.ok
    neighbours: dict[str, dict[str, bool]] = defaultdict(dict)
    for pair, ok in outcome.items():
        for machine in pair:
            (other,) = pair - {machine}
            neighbours[machine][other] = ok
    return {
        machine
        for machine, tested in neighbours.items()
        if len(tested) >= 2
        and not any(tested.values())
        and all(any(neighbours[other].values()) for other in tested)
    }
