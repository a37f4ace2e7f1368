"""Facts about a tensor that a tree must record: where it lies, whether it is a part, what its class adds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

_NOTES_OF_TORCH = ("_dynamo_", "_is_param")
"""Beginnings of attributes that torch makes again by itself."""


def is_distributed(value: object) -> bool:
    """Return whether a tensor is a part of a larger one, or describes its parts itself."""
    return isinstance(value, DTensor) or hasattr(value, "__create_write_items__") or _is_sharded(value)


def _is_sharded(value: object) -> bool:
    return type(value).__name__ == "ShardedTensor"


def is_transparent(value: Tensor) -> bool:
    """Return whether a subclass has no more than the tensor itself."""
    return (
        type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not getattr(value, "__dict__", None)
        and type(value).__new__ is Tensor.__new__
    )


def attributes_of(value: Tensor) -> dict[str, Any]:
    """Return what a script has noted at a tensor, by attribute; a class of its own has ways to list its parts."""
    if hasattr(value, "__tensor_flatten__") or hasattr(value, "__create_write_items__"):
        return {}
    held: dict[str, Any] = getattr(value, "__dict__", {})
    return {name: each for name, each in held.items() if not name.startswith(_NOTES_OF_TORCH)}


def is_unreduced(value: object) -> bool:
    """Return whether a tensor's elements are those of all ranks together: no rank has one of them."""
    return isinstance(value, DTensor) and any(isinstance(each, Partial) for each in value.placements)


def part_facts(value: DTensor) -> tuple[tuple[int, ...], ...]:
    """Return size and offset of this rank's part, and the sizes of the mesh, as plain data."""
    mesh = value.device_mesh
    size, offset = compute_local_shape_and_global_offset(value.shape, mesh, value.placements)
    return tuple(size), tuple(offset), tuple(mesh.shape)


def plain_placements(value: DTensor) -> list[tuple[Any, ...]]:
    """Return the placements of a distributed tensor as plain data."""
    plain: list[tuple[Any, ...]] = []
    for each in value.placements:
        if type(each) is Shard:
            plain.append(("S", each.dim))
        elif type(each) is _StridedShard:
            plain.append(("SS", each.dim, each.split_factor))
        elif type(each) is _NormPartial:
            plain.append(("N", each.norm_type))
        elif type(each) is Partial:
            plain.append(("P", str(each.reduce_op)))
        elif isinstance(each, Replicate):
            plain.append(("R",))
        else:
            plain.append((type(each).__name__, repr(each)))
    return plain


def placements_of(plain: Any) -> tuple[Any, ...] | None:
    """Return the placements that :func:`plain_placements` wrote; None when there is one of another kind."""
    makers: dict[str, Callable[..., Any]] = {
        "S": Shard,
        "SS": _strided,
        "R": Replicate,
        "P": Partial,
        "N": _NormPartial,
    }
    if any(each[0] not in makers for each in plain):
        return None
    return tuple(makers[each[0]](*each[1:]) for each in plain)


def _strided(dim: int, parts: int) -> _StridedShard:
    """Return the placement of rows that FSDP2 divides once more than tensor parallel does."""
    return _StridedShard(dim, split_factor=parts)


def unusual_stride(value: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor that does not lie row by row; None for one that does."""
    if is_distributed(value) or value.is_contiguous():
        return None
    # The same order of dimensions, without the gaps of a part of a larger tensor.
    like = torch.empty_like(value, device="meta")
    return None if like.is_contiguous() else tuple(like.stride())


def nbytes_of(value: Tensor) -> int:
    """Return the number of bytes of the elements of a tensor."""
    return math.prod(value.shape) * value.dtype.itemsize
