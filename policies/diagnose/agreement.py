"""Groups that replay the same steps must compute the same, bit for bit: find those that do not.

A group is compared with those of its size on the same hardware and software: its ranks read the same data from the
same state. The result of more than half of at least three is right; two that differ only show that one is wrong.
A job whose kernels are not deterministic differs everywhere and accuses no machine: an odd group must be odd again in a
second round, while the others compute what they computed before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from holdfast.models.agent import StepDigest
from holdfast.models.base import Frozen

AT_LEAST = 3
"""With fewer groups none is the majority."""


class GroupResults(Frozen):
    """Results that one group computed."""

    size: int
    """Its ranks."""
    kind: str = ""
    """Hardware and software: only groups that are equal in these must compute the same."""
    digests: tuple[tuple[StepDigest, ...], ...] = ()
    """By rank, then step; empty: not known."""


class Agreement(Frozen):
    """Groups of one phase that compute something else than the others."""

    odd: tuple[int, ...] = ()
    """Their numbers."""
    differ: bool = False
    """Some groups that must agree do not; without ``odd`` there is no evidence which is right."""
    reasons: tuple[str, ...] = ()


def compare(groups: Sequence[GroupResults]) -> Agreement:
    """Compare the groups of one phase."""
    odd: list[int] = []
    reasons: list[str] = []
    differ = False
    for members in _equals(groups):
        counts = Counter(groups[index].digests for index in members)
        if len(counts) < 2:
            continue
        differ = True
        (right, votes), *_ = counts.most_common()
        if len(members) < AT_LEAST or 2 * votes <= len(members):
            reasons.append(f"groups {', '.join(map(str, members))} compute {len(counts)} different results")
            continue
        others = [index for index in members if groups[index].digests != right]
        odd += others
        reasons += [
            f"group {index} differs from {votes} others: {first_difference(groups[index].digests, right)}"
            for index in others
        ]
    return Agreement(odd=tuple(sorted(odd)), differ=differ, reasons=tuple(reasons))


def again(first: Sequence[GroupResults], second: Sequence[GroupResults]) -> tuple[int, ...]:
    """Return the groups that were odd in both rounds of a phase, while all others computed the same in both."""
    before, now = compare(first), compare(second)
    if before.odd != now.odd:
        return ()
    stable = all(
        one.digests == other.digests
        for index, (one, other) in enumerate(zip(first, second, strict=True))
        if index not in before.odd
    )
    return before.odd if stable else ()


def first_difference(one: Sequence[Sequence[StepDigest]], other: Sequence[Sequence[StepDigest]]) -> str:
    """Describe where two groups part: the earliest step, and its first computed value that differs."""
    found = [
        (mine.step, place, rank, name)
        for rank, (left, right) in enumerate(zip(one, other, strict=False))
        for mine, theirs in zip(left, right, strict=False)
        for place, name in enumerate(("loss", "gradients", "grad_norm", "parameters"))
        if getattr(mine, name) != getattr(theirs, name)
    ]
    if not found:
        return "they did not report the same steps"
    step, _, rank, name = min(found)
    return f"{name} of rank {rank} at step {step}"


def _equals(groups: Sequence[GroupResults]) -> list[list[int]]:
    """Return the numbers of groups that must agree."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        if group.digests and all(group.digests):
            found[group.size, group.kind].append(index)
    return list(found.values())
