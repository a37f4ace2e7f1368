"""Boxes of a tensor, as offsets and sizes: whether they lie in it, and whether two of them overlap. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Ints = Sequence[int]


def inside(offsets: Ints, sizes: Ints, whole: Ints) -> bool:
    """Return whether a box is within a tensor of sizes ``whole``."""
    return len(offsets) == len(sizes) == len(whole) and all(
        offset >= 0 and offset + size <= limit
        for offset, size, limit in zip(offsets, sizes, whole, strict=True)
    )


def overlap(boxes: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints] | None:
    """Return the offsets of two boxes that have an element in common; None: no two have.

    A sweep along the dimension in which most boxes begin apart: there are thousands of ranks' boxes of one tensor.
    """
    filled = [box for box in boxes if 0 not in box[1]]
    if len(filled) < 2 or not filled[0][0]:
        return (filled[0][0], filled[1][0]) if len(filled) > 1 else None
    along = max(range(len(filled[0][0])), key=lambda dim: len({offsets[dim] for offsets, _ in filled}))
    still: list[tuple[Ints, Ints]] = []
    for offsets, sizes in sorted(filled, key=lambda box: box[0][along]):
        still = [box for box in still if box[0][along] + box[1][along] > offsets[along]]
        for other in still:
            if _meet(offsets, sizes, *other):
                return other[0], offsets
        still.append((offsets, sizes))
    return None


def _meet(one: Ints, one_sizes: Ints, other: Ints, other_sizes: Ints) -> bool:
    return all(
        a < b + b_size and b < a + a_size
        for a, a_size, b, b_size in zip(one, one_sizes, other, other_sizes, strict=True)
    )
