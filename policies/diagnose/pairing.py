"""Pairs of machines to test with each other: neighbours first, then suspects with good ones.

The second round is DLRover's: a failed pair does not show which side is bad, a new pairing with a machine that passed
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.models.alert import Finding
from holdfast.policies.diagnose.verdicts import pair_results

Pair = tuple[str, str]


def neighbours(machines: Sequence[str]) -> list[Pair]:
    """Pair each machine with the next, in a ring; two machines are one pair."""
    if len(machines) < 2:
        return []
    ring = list(zip(machines, (*machines[1:], machines[0]), strict=True))
    return ring[:1] if len(machines) == 2 else ring


def again(findings: Iterable[Finding], spares: Sequence[str] = ()) -> list[Pair]:
    """Pair each machine of a failed pair that passed with no machine, with two that are good and new to it.

    Args:
        findings: of the first round.
        spares: machines that were not tested and count as good (standbys that passed their checks).

    Returns:
        Pairs (suspect, good); none when nothing failed, or no good machine is left.
    """
    results = pair_results(findings)
    suspects = [machine for machine, tested in results.items() if not any(tested.values())]
    good = [machine for machine, tested in results.items() if tested and all(tested.values())]
    good += [machine for machine, tested in results.items() if any(tested.values()) and machine not in good]
    pairs: list[Pair] = []
    # One spare for all: any machine that passes with it proves it good.
    partners = good or list(spares[:1])
    for index, suspect in enumerate(sorted(suspects)):
        start = 2 * index % max(1, len(partners))
        turn = (*partners[start:], *partners[:start])
        # Two, where there are: one failed transfer with a good machine may be that link's.
        pairs += [(suspect, partner) for partner in turn if partner not in results[suspect]][:2]
    return pairs
