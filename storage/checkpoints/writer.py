"""Saves one rank's state into its two shard files, in turn."""

from __future__ import annotations

import mmap
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.utils import find_state_dict_object

from holdfast.storage.checkpoints import buffers
from holdfast.storage.checkpoints.buffers import HEADER_BYTES, ShardHeader
from holdfast.storage.checkpoints.layout import Placed, ShardLayout, align, dump_object, zip_form


@dataclass(frozen=True)
class Owner:
    """Whose shard it is."""

    job: str
    epoch: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class Contents:
    """Values of all items of a layout at one step: what :meth:`ShardWriter.fill` copies."""

    tensors: list[Tensor]
    objects: list[bytes]


@dataclass
class _Slot:
    """A mapped shard file that carries the layout's fixed bytes."""

    path: Path
    buf: mmap.mmap
    targets: list[Tensor]


@dataclass
class ShardWriter:
    """Writes shards of one layout.

    A save is a copy of tensor bytes into their places; the file's structure is written once per slot.
    """

    layout: ShardLayout
    owner: Owner
    folder: Path
    _slots: dict[Path, _Slot] = field(default_factory=dict)
    _pickled: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    _next: Path | None = None

    def __post_init__(self) -> None:
        self._tensor_items = [each for each in self.layout.items if each.is_tensor]
        self._object_items = [each for each in self.layout.items if not each.is_tensor]
        self._names = {each.index.fqn for each in self.layout.items}
        self.payload_offset = align(HEADER_BYTES + len(self.layout.metadata), HEADER_BYTES)
        self.file_nbytes = self.payload_offset + self.layout.payload_nbytes

    def collect(self, flat: dict[str, Any]) -> Contents | None:
        """The values of ``flat`` in the layout's order; None when they do not fit it any more."""
        if flat.keys() != self._names:
            return None
        try:
            tensors = [find_state_dict_object(flat, each.index) for each in self._tensor_items]
        except (ValueError, IndexError, AttributeError):
            return None
        if not all(_fits(tensor, each) for tensor, each in zip(tensors, self._tensor_items, strict=True)):
            return None
        objects = [self._dump(each.index.fqn, flat[each.index.fqn]) for each in self._object_items]
        sizes = zip(objects, self._object_items, strict=True)
        if any(len(data) > each.place.length for data, each in sizes):
            return None
        return Contents(tensors, objects)

    def save(self, contents: Contents, step: int) -> Path:
        """Write one complete shard of ``step`` over the older one and return its path."""
        slot = self._slot(self._next or buffers.slot_to_overwrite(self.folder, self.owner.rank))
        buffers.begin(slot.buf)
        self._fill(slot, contents)
        header = self._header(step)
        header = header.model_copy(update={"digest": buffers.digest_of(slot.buf, header)})
        buffers.commit(slot.buf, header)
        a, b = (buffers.shard_path(self.folder, self.owner.rank, name) for name in buffers.SLOTS)
        self._next = b if slot.path == a else a
        return slot.path

    @torch.no_grad()
    def _fill(self, slot: _Slot, contents: Contents) -> None:
        if slot.targets:
            torch._foreach_copy_(slot.targets, contents.tensors)
        for each, data in zip(self._object_items, contents.objects, strict=True):
            start = self.payload_offset + each.place.offset
            slot.buf[start : start + each.place.length] = data.ljust(each.place.length, b"\0")

    def _dump(self, name: str, value: object) -> bytes:
        """Pickled for torch.load; the slow part is skipped while the value is what it was."""
        try:
            quick = pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            return dump_object(value)
        known = self._pickled.get(name)
        if known is None or known[0] != quick:
            known = self._pickled[name] = (quick, dump_object(value))
        return known[1]

    def _slot(self, path: Path) -> _Slot:
        if path not in self._slots:
            buf = buffers.create(path, self.file_nbytes)
            buffers.begin(buf)
            self._slots[path] = _Slot(path, buf, self._carve(buf))
        return self._slots[path]

    def _carve(self, buf: mmap.mmap) -> list[Tensor]:
        """Write what stays the same in every save; return views of the places of the tensors' bytes."""
        buf[HEADER_BYTES : self.payload_offset] = self.layout.metadata.ljust(
            self.payload_offset - HEADER_BYTES, b"\0"
        )
        targets = []
        for each in self._tensor_items:
            form = zip_form(each.shape, each.dtype)
            start = self.payload_offset + each.place.offset
            data_at = start + len(form.head)
            data_end = data_at + form.data_nbytes
            buf[start:data_at] = form.head
            buf[data_end : data_end + len(form.tail)] = form.tail
            targets.append(tensor_view(buf, data_at, each.shape, each.dtype))
        return targets

    def _header(self, step: int) -> ShardHeader:
        return ShardHeader(
            job=self.owner.job,
            rank=self.owner.rank,
            step=step,
            epoch=self.owner.epoch,
            world_size=self.owner.world_size,
            plan=self.layout.plan,
            meta_offset=HEADER_BYTES,
            meta_nbytes=len(self.layout.metadata),
            payload_offset=self.payload_offset,
            owned_nbytes=self.layout.owned_nbytes,
            payload_nbytes=self.layout.payload_nbytes,
            file_nbytes=self.file_nbytes,
        )


def tensor_view(buf: mmap.mmap, offset: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor over bytes of ``buf``, without a copy."""
    nbytes = shape.numel() * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(buf, dtype=torch.uint8, count=nbytes, offset=offset)
    return raw.view(dtype).view(shape)


def _fits(value: object, each: Placed) -> bool:
    return isinstance(value, Tensor) and value.shape == each.shape and value.dtype == each.dtype
