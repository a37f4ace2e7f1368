"""Tensors as plain data: their bytes, shape and type, whatever their layout is.

``torch.save`` in its one-stream format, which tolerates padding, knows neither 8-bit floats nor nested tensors, and
writes addresses. Here equal tensors give equal bytes, and reading them unpickles nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.array_views import ArrayViews
from holdfast.storage.checkpoints.format.item_bytes import bytes_of

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


def is_turned(value: Tensor) -> bool:
    """Return whether a tensor is a view that conjugates or negates what lies in its memory."""
    return value.is_conj() or value.is_neg()


_SAME_BYTES = 64 << 10
"""Larger tensors that are the very same have one item, and another name for it."""
_MOST_GAPS = 4
"""Memory that overlapping tensors have together may have so many times the bytes of their elements."""
_SPARE_BYTES = 4096
_MOST_BYTES = 64 << 20
"""Larger memory stays an item for each tensor: what lies in a tree is written on the step's path, at every save."""
_ALIGNED = 16
"""Bytes: of the largest element."""

Storage = tuple[torch.device, int]
Spans = Mapping[Storage, Sequence[tuple[int, int]]]
"""Of storages, first byte and end of pieces that are written as they are: by place, none within another."""


class _View(NamedTuple):
    """The bytes of a storage that a tensor has."""

    low: int
    high: int
    value: Tensor
    """Kept: no other tensor gets its memory meanwhile."""


class Views:
    """Finds tensors of a part that overlap: a change of one changes the other, and so it must after a restore."""

    def __init__(self, together: Spans | None = None) -> None:
        """Prepare; ``together``: what :meth:`overlapping` found at a look before."""
        self._together: Spans = together or {}
        self.arrays = ArrayViews()
        """The numpy arrays of the part."""
        self._seen: dict[Storage, list[_View]] = {}

    def note(self, value: Tensor) -> None:
        """Take notice of a strided tensor."""
        if value.numel() == 0:
            return
        storage = value.device, value.untyped_storage().data_ptr()
        self._seen.setdefault(storage, []).append(_View(*_span(value), value))

    def overlapping(self) -> Spans:
        """Return the pieces of memory that several tensors have, where nothing else would keep these together."""
        found = {storage: _pieces(seen) for storage, seen in self._seen.items() if len(seen) > 1}
        return {storage: pieces for storage, pieces in found.items() if pieces}

    def addresses(self) -> dict[int, int]:
        """Return first addresses of the tensors in this host's memory, and their ends."""
        found: dict[int, int] = {}
        for (device, at), seen in self._seen.items():
            for view in seen if device.type == "cpu" else ():
                found[at + view.low] = max(at + view.high, found.get(at + view.low, 0))
        return found

    def piece(self, value: Tensor) -> tuple[int, int] | None:
        """Return the piece that holds ``value`` and what overlaps with it; None: it is written by itself."""
        if not self._together or value.numel() == 0:
            return None
        storage = value.device, value.untyped_storage().data_ptr()
        pieces: Sequence[tuple[int, int]] = self._together.get(storage, ())
        low, high = _span(value)
        at = bisect_right(pieces, low, key=lambda each: each[0]) - 1
        return pieces[at] if at >= 0 and high <= pieces[at][1] else None


def _span(value: Tensor) -> tuple[int, int]:
    """Return the first byte in its storage of a tensor that has elements, and the end."""
    first, size = int(value.storage_offset()), value.element_size()
    steps = zip(value.shape, value.stride(), strict=True)
    last = first + sum((int(high) - 1) * int(step) for high, step in steps)
    return first * size, (last + 1) * size


def _is_cut(value: Tensor) -> bool:
    """Return whether a tensor's elements alone are written: its storage is far larger, or smaller."""
    nbytes = value.numel() * value.element_size()
    return value.untyped_storage().nbytes() > 2 * nbytes + _SPARE_BYTES or 0 in value.stride()


def _pieces(seen: Sequence[_View]) -> list[tuple[int, int]]:
    groups: list[list[_View]] = []
    end = -1
    for each in sorted(seen, key=lambda view: view[:2]):
        if each.low >= end:
            groups.append([])
        groups[-1].append(each)
        end = max(end, each.high)
    return [(each[0].low, max(view.high for view in each)) for each in groups if _belongs_together(each)]


def _belongs_together(group: Sequence[_View]) -> bool:
    if len(group) == 1:
        return False
    different = {
        (low, value.dtype, value.shape, value.stride(), is_turned(value)): value.numel()
        * value.element_size()
        for low, _, value in group
    }
    if len(different) == 1:
        return _is_cut(group[0].value) and sum(different.values()) <= _SAME_BYTES
    nbytes = max(each.high for each in group) - group[0].low
    # Columns of a large matrix overlap by their ends alone: the matrix is not written for them.
    return nbytes <= min(_MOST_BYTES, _MOST_GAPS * sum(different.values()) + _SPARE_BYTES)


class RawWriter:
    """Writes tensors; those that share a storage go on sharing it."""

    def __init__(self, views: Views | None = None) -> None:
        self._views = views
        self._known: dict[tuple[Any, ...], int] = {}
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
            if value.is_conj():
                return "@layout", "conjugated", [self.node(value.conj())], None, device
            if value.is_neg():
                return "@layout", "negated", [self.node(torch._neg_view(value))], None, device
            return self._strided(value, device)
        inside = _inside(value)
        if inside is None:
            return None
        kind, tensors, rest = inside
        return "@layout", kind, [self.node(each) for each in tensors], rest, device

    def _strided(self, value: Tensor, device: str) -> Node:
        if self._views is not None and (piece := self._views.piece(value)) is not None:
            return self._overlapping(value, piece, device)
        if _is_cut(value):
            value = value.clone(memory_format=torch.contiguous_format)
        held = value.untyped_storage()
        key = (str(value.device), held.data_ptr())
        data = None
        if key not in self._known or held.nbytes() == 0:
            self._count += 1
            self._known[key] = self._count
            self._kept.append(value)
            data = bytes(bytes_of(torch.empty(0, dtype=torch.uint8, device=value.device).set_(held).cpu()))
        place = (tuple(value.shape), value.stride(), value.storage_offset())
        return "@raw", self._known[key], data, str(value.dtype).removeprefix("torch."), *place, device

    def _overlapping(self, value: Tensor, piece: tuple[int, int], device: str) -> Node:
        held = value.untyped_storage()
        low, high = piece[0] - piece[0] % _ALIGNED, piece[1]
        key = (str(value.device), held.data_ptr(), piece[0])
        data = None
        if key not in self._known:
            self._count += 1
            self._known[key] = self._count
            self._kept.append(value)
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(held)
            data = bytes(bytes_of(whole[low:high].cpu()))
        place = (tuple(value.shape), value.stride(), value.storage_offset() - low // value.element_size())
        return "@raw", self._known[key], data, str(value.dtype).removeprefix("torch."), *place, device


class RawReader:
    """Makes the tensors again, in the order in which they were written."""

    def __init__(self, device: str | None = None) -> None:
        """Prepare; ``device``: where to make them; None: where they were."""
        self._device = device
        self._storages: dict[int, Any] = {}

    def strided(self, node: Node) -> Tensor:
        """Return the tensor of a ``@raw`` node.

        Raises:
            CheckpointError: the bytes are not there, or are of an unknown type.
        """
        _, number, data, dtype, shape, stride, offset, device = node
        device = self._device or device
        if data is not None:
            made = torch.empty(len(data), dtype=torch.uint8, device="cpu")
            bytes_of(made)[:] = data
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
        _, kind, nodes, rest, device = node
        device = self._device or device
        tensors = [self.any(each) for each in nodes]
        if kind in _LAYOUTS:
            return _sparse(kind, tensors, rest).to(device)
        if kind not in _MAKERS:
            raise CheckpointError(
                f"a tensor of the layout {kind!r}, which this version of Holdfast does not know"
            )
        return _MAKERS[kind](tensors, rest).to(device)

    def any(self, node: Node) -> Tensor:
        """Return the tensor of either node."""
        return self.strided(node) if node[0] == "@raw" else self.layout(node)


def _inside(value: Tensor) -> tuple[str, list[Tensor], Any] | None:
    """Return the parts of a tensor that is not plain: kind, tensors, and the rest."""
    if value.layout is torch.sparse_coo:
        rest = (tuple(value.shape), value.is_coalesced())
        return "torch.sparse_coo", [value._indices(), value._values()], rest
    if value.layout in _SPARSE:
        names = _SPARSE[value.layout]
        tensors = [*(getattr(value, name)() for name in names), value.values()]
        return str(value.layout), tensors, (tuple(value.shape), False)
    if value.is_quantized:
        return _quantized(value)
    if value.is_nested and value.layout is torch.strided:
        tensors = list(value.unbind())
        return "nested", tensors, None if tensors else str(value.dtype).removeprefix("torch.")
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


def _sparse(kind: str, tensors: list[Tensor], rest: Any) -> Tensor:
    shape, coalesced = rest
    if kind == "torch.sparse_coo":
        return torch.sparse_coo_tensor(
            tensors[0],
            tensors[1],
            shape,
            device=tensors[1].device,
            is_coalesced=coalesced,
            check_invariants=True,
        )
    return torch.sparse_compressed_tensor(
        tensors[0],
        tensors[1],
        tensors[2],
        shape,
        device=tensors[2].device,
        layout=_LAYOUTS[kind],
        check_invariants=True,
    )


def _per_tensor(tensors: list[Tensor], rest: Any) -> Tensor:
    return torch._make_per_tensor_quantized_tensor(tensors[0], rest[1], rest[2])


def _per_channel(tensors: list[Tensor], rest: Any) -> Tensor:
    return torch._make_per_channel_quantized_tensor(tensors[0], tensors[1], tensors[2], rest[1])


def _jagged(tensors: list[Tensor], rest: Any) -> Tensor:
    lengths = tensors[2] if len(tensors) > 2 else None
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        tensors[0], offsets=tensors[1], lengths=lengths, jagged_dim=rest
    )
    return made


_MAKERS: dict[str, Callable[[list[Tensor], Any], Tensor]] = {
    "conjugated": lambda tensors, _: tensors[0].conj(),
    "negated": lambda tensors, _: torch._neg_view(tensors[0]),
    "jagged": _jagged,
    "nested": lambda tensors, dtype: torch.nested.nested_tensor(
        tensors, dtype=dtype and getattr(torch, dtype), device=tensors[0].device if tensors else "cpu"
    ),
    "quantized": _per_tensor,
    "quantized_channels": _per_channel,
}
