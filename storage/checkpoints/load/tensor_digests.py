"""Digests of the tensors in a shard file: the content of a rank, in a few bytes per tensor.

A replica's file has the same tensors in other places, and in other pieces: rows that the plan gave to one rank are not
those that it gave to the other. So the pieces of a box are digested one after the other, as the box lies in memory.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import xxhash

from holdfast.models.replica import MOST_PATHS, REST
from holdfast.storage.checkpoints.format.safe_metadata import load_metadata
from holdfast.storage.checkpoints.format.structure import OWN, RANDOM
from holdfast.storage.checkpoints.load.held import HeldEntry, take_stock
from holdfast.storage.checkpoints.save import buffers


def tensor_digests(path: Path) -> dict[str, int]:
    """By name, and box where it is a part; not of single numbers, which count what a rank saw, nor of what is its own.

    Raises:
        CheckpointError: there is no complete shard.
    """
    header = buffers.require_header(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        raw = content[header.meta_offset : header.meta_offset + header.meta_nbytes]
        inventory, pieces = take_stock(header, load_metadata(raw))
        found: dict[str, int] = {}
        rest = xxhash.xxh3_64()
        held = sorted(
            zip(map(_path, inventory.entries), inventory.entries, pieces, strict=True), key=_by_path
        )
        with memoryview(content) as view, view[header.payload_offset :] as payload:
            for name, entry, parts in held:
                if not _counts(entry):
                    continue
                digest = xxhash.xxh3_64()
                for each in parts:
                    start = each.place.data_at or 0
                    with payload[start : start + each.place.data_nbytes] as data:
                        digest.update(data)
                if len(found) < MOST_PATHS:
                    found[name] = digest.intdigest()
                else:
                    rest.update(name.encode() + digest.digest())
                    found[REST] = rest.intdigest()
    return found


def _by_path(held: tuple[str, object, object]) -> str:
    return held[0]


def _path(entry: HeldEntry) -> str:
    offsets, sizes = entry.box
    if not any(offsets) and sizes == entry.size:
        return entry.name
    rows = ", ".join(f"{at}:{at + size}" for at, size in zip(offsets, sizes, strict=True))
    return f"{entry.name}[{rows}]"


def _counts(entry: HeldEntry) -> bool:
    """Return whether it is a tensor of several elements, and not one rank's own."""
    own = entry.name.startswith((RANDOM, OWN))
    return not own and entry.dtype is not None and entry.nbytes(entry.box[1]) > entry.dtype.itemsize
