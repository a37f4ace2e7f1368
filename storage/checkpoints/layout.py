"""Where each item lies in a rank's shard file: decided once per plan, then only tensor bytes change.

A tensor item is a ``torch.save`` zip file; its head and tail are written once and the tensor's bytes in
between are overwritten by every save (``torch.load`` does not check the zip's CRC). Any other item is written
in the older one-stream format into a slot with room to grow, padded with zeros: that reader stops at the end
of its data.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

ALIGNMENT = 64
_LOCAL_HEADER_NBYTES = 30
_NAME_AND_EXTRA = struct.Struct("<HH")


def align(offset: int, to: int = ALIGNMENT) -> int:
    """The next multiple of ``to`` at or after ``offset``."""
    return -(-offset // to) * to


@dataclass(frozen=True)
class ZipForm:
    """A saved tensor of one shape and type without its data."""

    head: bytes
    data_nbytes: int
    tail: bytes

    @property
    def nbytes(self) -> int:
        """Size of the whole item."""
        return len(self.head) + self.data_nbytes + len(self.tail)


@lru_cache(maxsize=4096)
def zip_form(shape: torch.Size, dtype: torch.dtype) -> ZipForm:
    """What ``torch.save`` writes around the data of a contiguous tensor."""
    stream = io.BytesIO()
    with torch.serialization.skip_data():
        torch.save(torch.empty(shape, dtype=dtype), stream)
    data_nbytes = math.prod(shape) * dtype.itemsize
    with stream.getbuffer() as content:
        at = _data_offset(stream)
        return ZipForm(bytes(content[:at]), data_nbytes, bytes(content[at + data_nbytes :]))


def _data_offset(stream: io.BytesIO) -> int:
    with zipfile.ZipFile(stream) as archive:
        record = next(info for info in archive.infolist() if info.filename.endswith("/data/0"))
    names = _NAME_AND_EXTRA.unpack_from(stream.getbuffer(), record.header_offset + 26)
    return int(record.header_offset + _LOCAL_HEADER_NBYTES + sum(names))


def dump_object(value: object) -> bytes:
    """A non-tensor item as ``torch.load`` reads it, in the format that tolerates bytes after its end."""
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def slot_nbytes(nbytes: int) -> int:
    """Room given to a non-tensor item that first took ``nbytes``."""
    return align(2 * nbytes + 512)


@dataclass(frozen=True)
class Place:
    """Where one item lies. Offsets count bytes from the start of the payload."""

    offset: int
    length: int
    data_at: int | None = None
    """Start of a tensor's own bytes; None for other items."""
    data_nbytes: int = 0


@dataclass(frozen=True)
class Placed:
    """An item of the plan and its place."""

    item: WriteItem
    place: Place

    @property
    def index(self) -> MetadataIndex:
        """What the item is called in the checkpoint's metadata."""
        return self.item.index

    @property
    def is_tensor(self) -> bool:
        """False for objects that are pickled."""
        return self.item.type != WriteItemType.BYTE_IO

    @property
    def shape(self) -> torch.Size:
        """Shape of this rank's part of the tensor."""
        assert self.item.tensor_data is not None
        return torch.Size(self.item.tensor_data.chunk.sizes)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensor's elements."""
        assert self.item.tensor_data is not None
        return self.item.tensor_data.properties.dtype


@dataclass(frozen=True)
class ShardLayout:
    """One rank's shard file, apart from the header page."""

    plan: str
    items: tuple[Placed, ...]
    owned: int
    """How many of ``items``, from the first, the global plan gave this rank."""
    owned_nbytes: int
    payload_nbytes: int
    metadata: bytes = field(repr=False)
    """Pickled ``Metadata`` of all items, with a :class:`Place` for each."""


def lay_out(
    plan: str, owned: Sequence[WriteItem], local: SavePlan, objects: Mapping[MetadataIndex, int]
) -> ShardLayout:
    """Place this rank's owned items first, then the rest of its local items.

    Args:
        plan: identifies this layout on all ranks.
        owned: the items that the global plan left to this rank.
        local: everything this rank has.
        objects: size in bytes of each non-tensor item, pickled.
    """
    mine = {item.index for item in owned}
    rest = [item for item in local.items if item.index not in mine]
    placed: list[Placed] = []
    end = owned_nbytes = 0
    for number, item in enumerate((*owned, *rest)):
        if number == len(owned):
            owned_nbytes = end
        placed.append(_place(item, end, objects))
        end = align(placed[-1].place.offset + placed[-1].place.length)
    owned_nbytes = owned_nbytes if rest else end
    return ShardLayout(
        plan=plan,
        items=tuple(placed),
        owned=len(owned),
        owned_nbytes=owned_nbytes,
        payload_nbytes=end,
        metadata=_local_metadata(local, placed),
    )


def _place(item: WriteItem, offset: int, objects: Mapping[MetadataIndex, int]) -> Placed:
    if item.type == WriteItemType.BYTE_IO:
        return Placed(item, Place(offset, slot_nbytes(objects[item.index])))
    probe = Placed(item, Place(offset, 0))
    form = zip_form(probe.shape, probe.dtype)
    return Placed(item, Place(offset, form.nbytes, offset + len(form.head), form.data_nbytes))


def _local_metadata(local: SavePlan, placed: Sequence[Placed]) -> bytes:
    """Metadata as if this rank's items were the whole checkpoint."""
    _, metadata = create_default_global_save_plan([local])
    metadata.planner_data = local.planner_data
    metadata.storage_data = {each.index: each.place for each in placed}
    return pickle.dumps(metadata)


def load_metadata(data: bytes) -> Metadata:
    """The metadata of a shard file whose digest was verified."""
    metadata: Any = pickle.loads(data)
    assert isinstance(metadata, Metadata)
    return metadata
