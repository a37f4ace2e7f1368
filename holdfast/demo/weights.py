"""Compares two files of final weights bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.models.base import Frozen


class WeightsComparison(Frozen):
    """The result of a comparison."""

    equal: bool
    tensors: int
    differing: tuple[str, ...] = ()
    """Names that differ in a bit, in shape or type, or that only one file has."""


def compare(one: Path, other: Path) -> WeightsComparison:
    """Compare the bytes of every tensor of two ``torch.save`` files (NaNs compare by their bits)."""
    import torch  # noqa: PLC0415  (1 s; only the end of a demo needs it)

    left, right = (
        _flat(torch.load(path, map_location="cpu", weights_only=True)["model"]) for path in (one, other)
    )
    names = sorted(left.keys() | right.keys())
    differing = tuple(name for name in names if _bits(left.get(name)) != _bits(right.get(name)))
    return WeightsComparison(equal=bool(names) and not differing, tensors=len(names), differing=differing)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.removesuffix("."): tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat


def _bits(value: Any) -> tuple[object, ...]:
    import torch  # noqa: PLC0415

    if not isinstance(value, torch.Tensor):
        return (repr(value),)
    return (value.dtype, value.shape, value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
