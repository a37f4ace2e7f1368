"""Comparison of machines: those that compute something else (for those that are slower:
:mod:`holdfast.policies.diagnose.pace`).

Bit-wise alignment (ByteRobust section 5): every machine runs the same small model with fixed weights and input for one
step, and the odd one is evicted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from holdfast.models.alert import Finding


def odd_digests(findings: Iterable[Finding]) -> tuple[set[str], list[str]]:
    """Return the machines whose digests differ from the majority of their equals, and sentences about them.

    Equals have one check and one kind of hardware and software. Without a majority no machine is accused; a tie of
    two sides is reported as such.
    """
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.digest:
            groups[finding.check, finding.kind].append(finding)
    odd: set[str] = set()
    reasons: list[str] = []
    for (check, kind), members in sorted(groups.items()):
        counts = Counter(member.digest for member in members)
        if len(counts) == 1:
            continue
        (winner, votes), *_ = counts.most_common()
        if 2 * votes <= len(members):
            reasons.append(
                f"{check} ({kind}): {_sides(members, counts)}: no majority, so no machine is accused"
            )
            continue
        accused = {member.machine for member in members if member.digest != winner}
        odd |= accused
        reasons.append(
            f"{check} ({kind}): {votes} of {len(members)} processes agree; {', '.join(sorted(accused))} "
            f"computed another result"
        )
    return odd, reasons


def _sides(members: Iterable[Finding], counts: Counter[str]) -> str:
    machines: dict[str, list[str]] = defaultdict(list)
    for member in members:
        machines[member.digest].append(member.machine)
    sides = [", ".join(dict.fromkeys(machines[digest])) for digest, _ in counts.most_common()]
    if len(sides) == 2:
        return f"a tie of two, {sides[0]} against {sides[1]}"
    return f"{len(sides)} different results"
