"""Reads the ``.metadata`` of a checkpoint that another program wrote, in time and memory in proportion to its size.

A pickle that calls nothing may still want hours and gigabytes for a few bytes, so this one is decoded by
:mod:`holdfast.bounded_pickle`, at a quarter of the speed. Only names that torch.distributed.checkpoint writes are
known, and each takes the attributes and arguments of real metadata only. What is read here is harmless to
:mod:`holdfast.storage.checkpoints.format.safe_metadata` too.
"""

from __future__ import annotations

import enum
import pathlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as stock
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorProperties

from holdfast import bounded_pickle
from holdfast.bounded_pickle import MaliciousPickleError, PickledKind
from holdfast.errors import CheckpointError

MAX_BYTES = 2 << 30
"""Ten thousand ranks with five hundred sharded tensors have half of it."""
_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_MOST_DIMS = 64
_END = 1 << 63
_LONGEST = 4096
"""Characters of a path."""


def load_foreign(data: bytes, where: str) -> Metadata:
    """Return the metadata in ``data``.

    Args:
        data: content of ``.metadata``.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: it refers to anything but the classes of a checkpoint's metadata, wants more than its size
            explains, or is no metadata.
    """
    try:
        metadata = bounded_pickle.load(data, kinds=_kind, max_bytes=MAX_BYTES, max_operations=None)
    except MaliciousPickleError as error:
        raise CheckpointError(f"{where}: its .metadata is refused: {error}.") from error
    if not isinstance(metadata, Metadata):
        raise CheckpointError(
            f"{where}: its .metadata holds a {type(metadata).__name__}, expected checkpoint metadata."
        )
    return metadata


@cache
def _kind(module: str, name: str) -> Any:
    """Return what a name of a module stands for in metadata."""
    if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
        return found
    if (known := _kinds().get((module, name))) is not None:
        return known
    raise MaliciousPickleError(
        f"it refers to {module:.100}.{name:.100}, which no checkpoint's metadata needs: it may have been tampered with"
    )


@cache
def _kinds() -> Mapping[tuple[str, str], PickledKind]:
    attributes = [
        *(
            (_METADATA, getattr(stock, name))
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "StorageMeta",
                "TensorStorageMetadata",
            )
        ),
        (_FILES, filesystem._StorageInfo),
    ]
    found = {(module, kind.__name__): _with_attributes(kind) for module, kind in attributes}
    found |= {
        (_METADATA, "MetadataIndex"): _with_attributes(MetadataIndex, _require_index, is_key=True),
        (_METADATA, "TensorProperties"): PickledKind(
            "TensorProperties", blank=lambda: TensorProperties.__new__(TensorProperties), build=_properties
        ),
        (_METADATA, "_MEM_FORMAT_ENCODING"): PickledKind(
            "_MEM_FORMAT_ENCODING", call=stock._MEM_FORMAT_ENCODING
        ),
        ("torch.serialization", "_get_layout"): PickledKind("_get_layout", call=_layout),
        ("torch", "Size"): PickledKind("torch.Size", call=_size),
        ("torch", "device"): PickledKind("torch.device", call=_device),
        ("collections", "OrderedDict"): PickledKind("OrderedDict", call=_ordered),
    }
    for name in ("Path", "PosixPath"):
        found["pathlib", name] = PickledKind("Path", call=_path)
    for module in ("builtins", "__builtin__"):
        # How Python 3.11.0 to 3.11.3 write a member of an enumeration.
        found[module, "getattr"] = PickledKind("getattr", call=_member)
    try:
        from torch.distributed.checkpoint import hf_storage  # noqa: PLC0415  (recent torch only)
    except ImportError:
        return found
    if (hugging := getattr(hf_storage, "_HFStorageInfo", None)) is not None:
        found[hf_storage.__name__, "_HFStorageInfo"] = _with_attributes(hugging)
    return found


def _with_attributes(
    made: Any, require: Callable[[Mapping[str, Any]], None] = lambda _: None, *, is_key: bool = False
) -> PickledKind:
    """Return the kind of a dataclass whose instances are pickled with their attributes."""
    known = frozenset(each.name for each in fields(made))

    def build(instance: Any, state: Any) -> None:
        if not isinstance(state, dict) or not known.issuperset(state):
            raise TypeError(f"{made.__name__} has other attributes")
        require(state)
        instance.__dict__.update(state)

    return PickledKind(made.__name__, blank=lambda: made.__new__(made), build=build, is_key=is_key)


def _require_index(state: Mapping[str, Any]) -> None:
    if not isinstance(state.get("fqn"), str) or not isinstance(state.get("offset"), torch.Size | None):
        raise TypeError("MetadataIndex needs a name, and an offset or None")


def _properties(instance: Any, state: Any) -> None:
    if not isinstance(state, tuple) or len(state) != len(fields(TensorProperties)):
        raise TypeError("TensorProperties has other attributes")
    try:
        instance.__setstate__(state)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _size(numbers: Any) -> torch.Size:
    if type(numbers) not in (tuple, list) or len(numbers) > _MOST_DIMS:
        raise ValueError(f"a size that is no row of {_MOST_DIMS} numbers at most")
    for each in numbers:
        if type(each) is not int or not 0 <= each < _END:
            raise ValueError("a size of something else than numbers")
    return torch.Size(numbers)


def _layout(name: Any) -> torch.layout:
    found = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, torch.layout):
        raise ValueError("no layout of tensors")
    return found


def _device(kind: Any, index: Any = None) -> torch.device:
    if not isinstance(kind, str) or len(kind) > _MOST_DIMS or not isinstance(index, int | None):
        raise ValueError("no device")
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _ordered() -> OrderedDict[Any, Any]:
    return OrderedDict()


def _path(*parts: Any) -> pathlib.Path:
    if not all(isinstance(each, str) for each in parts) or sum(map(len, parts)) > _LONGEST:
        raise ValueError("no path")
    return pathlib.Path(*parts)


def _member(kind: Any, name: Any) -> enum.Enum:
    """Stand in for ``getattr``: return only members of the one enumeration that metadata has."""
    members = stock._MEM_FORMAT_ENCODING.__members__
    if not (isinstance(kind, PickledKind) and kind.name == "_MEM_FORMAT_ENCODING" and name in members):
        what = kind.name if isinstance(kind, PickledKind) else type(kind).__name__
        raise MaliciousPickleError(
            f"it asks for {name!r:.100} of {what}, and no checkpoint's metadata does: it may have been tampered with"
        )
    found: enum.Enum = members[name]
    return found
