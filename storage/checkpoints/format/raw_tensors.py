"""Tensors as plain data: their bytes, shape and type, whatever their layout is.

``torch.save`` in its one-stream format, which tolerates padding, knows neither 8-bit floats nor nested tensors, and
writes addresses. Here equal tensors give equal bytes, and reading them unpickles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import CheckpointError

Node = Any
_SPARSE = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS = {str(each): each for each in (torch.sparse_coo, *_SPARSE)}


def is_plain(value: Tensor) -> bool:
    """Return whether a tensor is nothing but strided elements."""
    return (
        value.layout is torch.strided and not value.is_quantized and not value.is_nested and not value.is_meta
    )


class RawWriter:
    """Writes tensors; those that share a storage go on sharing it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}
        self._kept: list[Tensor] = []
        self._count = 0

    def forget(self) -> None:
        """Forget the storages seen so far: later tensors share none with earlier ones."""
        self._known.clear()
        self._kept.clear()

    def node(self, value: Tensor) -> Node | None:
        """Return ``value`` as plain data; None when there is no way to write it."""
        device = value.device.type
        if is_plain(value):
            return self._strided(value.resolve_conj().resolve_neg(), device)
        inside = _inside(value)
        if inside is None:
            return None
        kind, tensors, told = inside
        return "@layout", kind, [self.node(each) for each in tensors], told, device

    def _strided(self, value: Tensor, device: str) -> Node:
        held = value.untyped_storage()
        if held.nbytes() > 2 * value.numel() * value.element_size() + 4096 or 0 in value.stride():
            value = value.clone(memory_format=torch.contiguous_format)
            held = value.untyped_storage()
        key = (str(value.device), held.data_ptr())
        data = None
        if key not in self._known or held.nbytes() == 0:
            self._count += 1
            self._known[key] = self._count
            self._kept.append(value)
            data = torch.empty(0, dtype=torch.uint8, device=value.device).set_(held).cpu().numpy().tobytes()
        place = (tuple(value.shape), value.stride(), value.storage_offset())
        return "@raw", self._known[key], data, str(value.dtype).removeprefix("torch."), *place, device


class RawReader:
    """Makes the tensors again, in the order in which they were written."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def strided(self, node: Node) -> Tensor:
        """Return the tensor of a ``@raw`` node.

        Raises:
            CheckpointError: the bytes are not there, or are of an unknown type.
        """
        _, number, data, dtype, shape, stride, offset, device = node
        if data is not None:
            made = (
                torch.frombuffer(bytearray(data), dtype=torch.uint8)
                if data
                else torch.empty(0, dtype=torch.uint8)
            )
            self._storages[number] = made.to(device).untyped_storage()
        known = getattr(torch, dtype, None)
        if number not in self._storages or not isinstance(known, torch.dtype):
            raise CheckpointError(f"a tensor of type {dtype} of which the bytes are missing")
        return torch.empty(0, dtype=known, device=device).set_(self._storages[number], offset, shape, stride)

    def layout(self, node: Node) -> Tensor:
        """Return the tensor of a ``@layout`` node.

        Raises:
            CheckpointError: this version knows no such layout.
        """
        _, kind, nodes, told, device = node
        tensors = [self.any(each) for each in nodes]
        if kind in _LAYOUTS:
            return _sparse(kind, tensors, told).to(device)
        if kind not in _MAKERS:
            raise CheckpointError(
                f"a tensor of the layout {kind!r}, which this version of Holdfast does not know"
            )
        return _MAKERS[kind](tensors, told).to(device)

    def any(self, node: Node) -> Tensor:
        """Return the tensor of either node."""
        return self.strided(node) if node[0] == "@raw" else self.layout(node)


def _inside(value: Tensor) -> tuple[str, list[Tensor], Any] | None:
    """Return the parts of a tensor that is not plain: kind, tensors, and the rest."""
    if value.layout is torch.sparse_coo:
        told = (tuple(value.shape), value.is_coalesced())
        return "torch.sparse_coo", [value._indices(), value._values()], told
    if value.layout in _SPARSE:
        names = _SPARSE[value.layout]
        tensors = [*(getattr(value, name)() for name in names), value.values()]
        return str(value.layout), tensors, (tuple(value.shape), False)
    if value.is_quantized:
        return _quantized(value)
    if value.is_nested and value.layout is torch.strided:
        return "nested", list(value.unbind()), None
    if value.is_nested and value.layout is torch.jagged:
        held: Any = value.detach()
        lengths = [] if held.lengths() is None else [held.lengths()]
        return "jagged", [held.values(), held.offsets(), *lengths], held._ragged_idx
    return None


def _quantized(value: Tensor) -> tuple[str, list[Tensor], Any] | None:
    dtype = str(value.dtype).removeprefix("torch.")
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return "quantized", [value.int_repr()], (dtype, value.q_scale(), value.q_zero_point())
    if value.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
        tensors = [value.int_repr(), value.q_per_channel_scales(), value.q_per_channel_zero_points()]
        return "quantized_channels", tensors, (dtype, value.q_per_channel_axis())
    return None


def _sparse(kind: str, tensors: list[Tensor], told: Any) -> Tensor:
    shape, coalesced = told
    if kind == "torch.sparse_coo":
        return torch.sparse_coo_tensor(
            tensors[0], tensors[1], shape, is_coalesced=coalesced, check_invariants=True
        )
    return torch.sparse_compressed_tensor(
        tensors[0], tensors[1], tensors[2], shape, layout=_LAYOUTS[kind], check_invariants=True
    )


def _per_tensor(tensors: list[Tensor], told: Any) -> Tensor:
    return torch._make_per_tensor_quantized_tensor(tensors[0], told[1], told[2])


def _per_channel(tensors: list[Tensor], told: Any) -> Tensor:
    return torch._make_per_channel_quantized_tensor(tensors[0], tensors[1], tensors[2], told[1])


def _jagged(tensors: list[Tensor], told: Any) -> Tensor:
    lengths = tensors[2] if len(tensors) > 2 else None
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        tensors[0], offsets=tensors[1], lengths=lengths, jagged_dim=told
    )
    return made


_MAKERS: dict[str, Callable[[list[Tensor], Any], Tensor]] = {
    "jagged": _jagged,
    "nested": lambda tensors, _: torch.nested.nested_tensor(tensors),
    "quantized": _per_tensor,
    "quantized_channels": _per_channel,
}
