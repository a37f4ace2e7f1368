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
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.storage.checkpoints.format.plain_pickle import dump_plain

ALIGNMENT = 64
_LOCAL_HEADER_NBYTES = 30
_NAME_AND_EXTRA = struct.Struct("<HH")


def align(offset: int, to: int = ALIGNMENT) -> int:
    """Return the next multiple of ``to`` at or after ``offset``."""
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
    """Return the bytes that ``torch.save`` writes around the data of a contiguous tensor."""
    stream = io.BytesIO()
    with torch.serialization.skip_data():
        torch.save(torch.empty(shape, dtype=dtype, device="cpu"), stream)
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
    """Return a non-tensor item as ``torch.load`` reads it, in the format that tolerates bytes after its end."""
    plain = dump_plain(value)
    if plain is not None:
        return plain
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def slot_nbytes(nbytes: int) -> int:
    """Room given to a non-tensor item that first took ``nbytes``."""
    return align(2 * nbytes + 512)


@dataclass(frozen=True)
class Place:
    """Where one item lies. Offsets count bytes from the start of the payload.

    Shards name this class: it keeps its name.
    """

    offset: int
    length: int
    data_at: int | None = None
    """Start of a tensor's own bytes; None for other items."""
    data_nbytes: int = 0
    row: int = 0
    """First row, within the box that the rank holds."""
    rows: int = 1
    """Rows of that box."""


@dataclass(frozen=True)
class Piece:
    """The unit that is saved as one item: an object, a box of a tensor, or some rows of that box."""

    fqn: str
    size: torch.Size | None
    """Size of the whole tensor; None for an object."""
    properties: TensorProperties | None
    offsets: torch.Size | None
    """Where the box that this rank holds begins in the tensor."""
    sizes: torch.Size | None
    start: int = 0
    stop: int = 1
    """Rows of the box along its first dimension."""
    slot_nbytes: int = 0
    """Room for an object."""

    @property
    def is_tensor(self) -> bool:
        """False for objects that are pickled."""
        return self.size is not None

    @property
    def held(self) -> MetadataIndex:
        """The box's index in this rank's state."""
        return MetadataIndex(self.fqn, self.offsets)

    @property
    def whole(self) -> bool:
        """Whether it is all of what the rank holds."""
        return not self.sizes or (self.start, self.stop) == (0, self.sizes[0])

    @property
    def index(self) -> MetadataIndex:
        """The piece's index in the checkpoint's metadata."""
        if not self.offsets:
            return MetadataIndex(self.fqn, self.offsets)
        return MetadataIndex(self.fqn, (self.offsets[0] + self.start, *self.offsets[1:]))

    @property
    def shape(self) -> torch.Size:
        """Its own shape."""
        assert self.sizes is not None
        return torch.Size((self.stop - self.start, *self.sizes[1:])) if self.sizes else self.sizes

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensor's elements."""
        assert self.properties is not None
        return self.properties.dtype

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """As the checkpoint's metadata describes it."""
        index = self.index
        assert index.offset is not None
        return ChunkStorageMetadata(index.offset, self.shape)


@dataclass(frozen=True)
class Placed:
    """A piece and its place."""

    piece: Piece
    place: Place


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
    plan: str, owned: Sequence[Piece], rest: Sequence[Piece], planner_data: Mapping[str, Any]
) -> ShardLayout:
    """Place this rank's owned pieces first, then the rest of what it holds.

    Args:
        plan: identifies this layout on all ranks.
        owned: what the global plan gave to this rank.
        rest: what others save, too: so that the rank can be restored from its own file alone.
        planner_data: how flat names were made of nested ones.
    """
    placed: list[Placed] = []
    end = owned_nbytes = 0
    for number, piece in enumerate((*owned, *rest)):
        if number == len(owned):
            owned_nbytes = end
        placed.append(Placed(piece, _place(piece, end)))
        end += align(placed[-1].place.length)
    return ShardLayout(
        plan=plan,
        items=tuple(placed),
        owned=len(owned),
        owned_nbytes=owned_nbytes if rest else end,
        payload_nbytes=end,
        metadata=_local_metadata(placed, planner_data),
    )


def read_layout(
    plan: str, metadata: Metadata, raw: bytes, owned_nbytes: int, payload_nbytes: int
) -> ShardLayout:
    """Return the layout of an existing shard file, from its own metadata: a new epoch can save by it at once.

    Args:
        plan: the file's.
        metadata: of the file's items.
        raw: the bytes that ``metadata`` was read from.
        owned_nbytes: leading part of the payload that the global plan gave this rank.
        payload_nbytes: all of the payload.
    """
    places: Mapping[MetadataIndex, Place] = metadata.storage_data
    placed = tuple(
        Placed(_piece(index, place, metadata.state_dict_metadata[index.fqn]), place)
        for index, place in places.items()
    )
    owned = sum(each.place.offset < owned_nbytes for each in placed)
    return ShardLayout(plan, placed, owned, owned_nbytes, payload_nbytes, raw)


def _piece(index: MetadataIndex, place: Place, known: STORAGE_TYPES) -> Piece:
    if not isinstance(known, TensorStorageMetadata):
        return Piece(index.fqn, None, None, None, None, slot_nbytes=place.length)
    chunk = next(each for each in known.chunks if each.offsets == index.offset)
    if not chunk.sizes:
        return Piece(index.fqn, known.size, known.properties, chunk.offsets, chunk.sizes)
    offsets = torch.Size((chunk.offsets[0] - place.row, *chunk.offsets[1:]))
    sizes = torch.Size((place.rows, *chunk.sizes[1:]))
    return Piece(
        index.fqn, known.size, known.properties, offsets, sizes, place.row, place.row + chunk.sizes[0]
    )


def _place(piece: Piece, offset: int) -> Place:
    if not piece.is_tensor:
        return Place(offset, piece.slot_nbytes)
    form = zip_form(piece.shape, piece.dtype)
    rows = piece.sizes[0] if piece.sizes else 1
    return Place(offset, form.nbytes, offset + len(form.head), form.data_nbytes, piece.start, rows)


def _local_metadata(placed: Sequence[Placed], planner_data: Mapping[str, Any]) -> bytes:
    """Metadata as if this rank's pieces were the whole checkpoint."""
    held: dict[str, STORAGE_TYPES] = {}
    for piece in (each.piece for each in placed):
        if piece.size is None or piece.properties is None:
            held[piece.fqn] = BytesStorageMetadata()
            continue
        tensor = held.setdefault(piece.fqn, TensorStorageMetadata(piece.properties, piece.size, []))
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.chunks.append(piece.chunk)
    places = {each.piece.index: each.place for each in placed}
    return pickle.dumps(Metadata(held, dict(planner_data), places))
